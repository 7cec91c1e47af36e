-- pgonce.outbox_caught_up(p_consumer, p_with): has a consumer got everything that the snapshot p_with sees?
-- answers  true: its lanes are kept beyond all of that, and nothing that is parked for it is due. What
--          is to be tried later, not due yet, or given up is not waited for.
-- raises   42704 no such consumer
create or replace function pgonce.outbox_caught_up(p_consumer text, p_with pg_snapshot)
returns boolean
language plpgsql volatile set search_path = ''
as $$
declare
    v_consumer pgonce.outbox_consumer := pgonce.known_consumer(p_consumer);
begin
    return not exists (select from pgonce.parked k where k.consumer = p_consumer and k.due_at <= pgonce.now())
       and not exists (
            select from pgonce.outbox_cursor l
             cross join pgonce.outbox_life f
              join pgonce.outbox o on o.lane = l.lane and o.seq > (l.place).floor
             where l.consumer = p_consumer
               and pgonce.unread(o.seq, o.xid, l.place, f.base_seq)
               and (o.seq <= f.base_seq or pg_visible_in_snapshot(o.xid, p_with))
               and pgonce.wanted(o.topic, o.type, o.tenant, v_consumer.topics, v_consumer.types, v_consumer.tenants));
end
$$;
