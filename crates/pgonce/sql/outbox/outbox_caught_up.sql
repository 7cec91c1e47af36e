-- pgonce.outbox_caught_up(p_subscription, p_with): reports whether a subscription has got everything that a
--          snapshot sees.
-- answers  true: its lanes have passed all of that, and nothing that is parked for it is due. What is to be
--          retried later, not due yet, dead, or behind one of these is not waited for. False where the log came from another
--          server and no relay has claimed lanes since: what the cursors have passed is not known
-- locks    nothing
-- writes   nothing
-- raises   42704 no such subscription
-- example  select pgonce.create_subscription('billing');
--          select pgonce.outbox_caught_up('billing', '1:1:');
create or replace function pgonce.outbox_caught_up(p_subscription text, p_with pg_snapshot)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
begin
    return not exists (select from pgonce.outbox_state l where l.database_life <> pgonce._database_life())
       and pgonce._outbox_misfit() is null
       and not exists (
            select from pgonce.parked k
             where k.subscription = p_subscription collate "C" and k.due_at <= pgonce.now()
               and not exists (select from pgonce.parked f
                                where f.tenant = k.tenant and f.subscription = k.subscription and f.subject = k.subject
                                  and f.state <> 'delayed' and f.seq <> k.seq
                                  and (f.seq < k.seq or k.state = 'delayed') offset 0))
       and not exists (
            select from pgonce.outbox_cursor l
             cross join pgonce.outbox_state f
              join pgonce.outbox o on o.lane = l.lane and o.seq > pgonce._unread_above(l.cursor)
             where l.subscription = p_subscription collate "C"
               and pgonce._is_unread(o.seq, o.xid, l.cursor, f.base_seq)
               and (o.seq <= f.base_seq or pg_visible_in_snapshot(o.xid, p_with))
               and pgonce._is_wanted(o.topic, o.type, o.tenant, v_subscription.topics, v_subscription.types, v_subscription.tenants));
end
$$;
