-- pgonce._projection_rest(p_projection, p_seen): the events of a projection that the snapshot p_seen does not see, or all where
--          it is null, in their order. After a restore in another cluster that may be too many, never too few:
--          their gates know them. Of stored messages also those that are replayed.
create or replace function pgonce._projection_rest(p_projection pgonce.projection, p_seen pg_snapshot)
returns setof pgonce.projected
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select r.message_id, r.tenant, r.type, r.entity, pgonce._version_of(r.headers, r.payload), r.headers, r.payload
      from (select m.seq, m.message_id::text as message_id, m.tenant::text as tenant, m.type::text as type,
                   m.key::text as entity, m.headers, convert_from(m.payload, 'UTF8')::jsonb as payload
              from pgonce.inbox_message m
             where m.consumer = (p_projection).from_consumer
               and (m.status = 'processed' or (p_projection).gate = 'marker' and exists (
                    select from pgonce.inbox_marker k
                     where k.tenant = m.tenant and k.message_id = m.message_id and k.source = 'event'
                       and k.consumer = 'projection:' || (p_projection).projection and k.day = pgonce._day_of(m.message_id)))
               and (p_seen is null or m.settled_xid is null or not pg_visible_in_snapshot(m.settled_xid, p_seen))
            union all
            select o.seq, o.message_id::text, o.tenant, o.type, o.subject, o.headers, o.payload
              from pgonce.outbox o
             where (p_projection).from_consumer is null
               and ((p_projection).topics is null or o.topic like any ((p_projection).topics))
               and (p_seen is null or not pg_visible_in_snapshot(o.xid, p_seen))) r
     order by r.seq;
end;
