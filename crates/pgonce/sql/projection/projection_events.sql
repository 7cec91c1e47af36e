-- pgonce.projection_events(p_projection, p_seen): the events of a projection, in their order: all, or those that
--          the snapshot p_seen does not see. After a restore in another cluster that may be too many, never too
--          few: their gates know them.
-- raises   P4031 the log does not reach back any more to where the projection begins
create or replace function pgonce.projection_events(p_projection pgonce.projection, p_seen pg_snapshot)
returns setof pgonce.projected
language plpgsql stable set search_path = ''
as $$
begin
    if p_projection.from_consumer is not null then
        return query
            select m.message_id::text, m.tenant::text, m.type::text, m.key::text,
                   pgonce.version_of(m.headers, convert_from(m.payload, 'UTF8')::jsonb), m.headers,
                   convert_from(m.payload, 'UTF8')::jsonb
              from pgonce.inbox_message m
             where m.consumer = p_projection.from_consumer and m.status = 'processed'
               and (p_seen is null or not pg_visible_in_snapshot(m.settled_xid, p_seen))
             order by m.seq;
        return;
    elsif p_projection.begins_after < (select min(o.from_seq) - 1 from pgonce.outbox_partition o) then
        raise exception 'the log does not reach back to where projection "%" begins', p_projection.projection
            using errcode = 'P4031', detail = 'Partitions that it needs were dropped: their retention was over.',
            hint = 'Keep the log for longer (pgonce.set_outbox_retention), or begin from a copy of the table.';
    end if;
    return query
        select o.message_id::text, o.tenant::text, o.type::text, o.subject::text,
               pgonce.version_of(o.headers, o.payload), o.headers, o.payload
          from pgonce.outbox o
         where (p_projection.topics is null or o.topic like any (p_projection.topics))
           and (p_seen is null or not pg_visible_in_snapshot(o.xid, p_seen))
         order by o.seq;
end
$$;
