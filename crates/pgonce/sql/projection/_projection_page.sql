-- pgonce._projection_page(p_projection, p_lane, p_after, p_limit): a page of the events of a projection: of one lane of the
--          log, or of the stored inbox, where everything is in lane 0, in their order.
-- raises   P4031 the log, or what is stored, does not reach back any more to where the projection begins; 55000 what was applied
--          is not what is stored
create or replace function pgonce._projection_page(p_projection pgonce.projection, p_lane integer, p_after bigint, p_limit integer)
returns table (seq bigint, event pgonce.projected)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    if p_projection.begins_after < pgonce._projection_gone(p_projection.from_consumer) and p_projection.from_consumer is null then
        raise exception 'the log does not reach back to where projection "%" begins', p_projection.projection
            using errcode = 'P4031', detail = 'Partitions that it needs were dropped: their retention was over.',
            hint = 'Keep the log for longer (pgonce.set_outbox_retention), or begin from a copy of the table.';
    elsif p_projection.begins_after < pgonce._projection_gone(p_projection.from_consumer) then
        raise exception 'what consumer "%" has stored does not reach back to where projection "%" begins', p_projection.from_consumer,
            p_projection.projection using errcode = 'P4031', detail = 'Messages that it needs were purged: their retention was over.',
            hint = 'Keep stored messages for longer (p_keep_stored of pgonce.define_inbox), or begin from a copy of the table.';
    elsif exists (select from pgonce.sweep w where w.name = ('inbox_read/' || p_projection.from_consumer) collate "C") then
        raise exception 'what consumer "%" has applied is not what it has stored', p_projection.from_consumer
            using errcode = '55000', detail = 'A reader took messages out of envelopes, and projection "' || p_projection.projection || '" is made of those.',
            hint = 'It stays as it is. One that is to be built anew needs a consumer whose messages are applied as they are stored.';
    elsif p_projection.from_consumer is not null then
        return query
            select m.seq, row(m.message_id, m.tenant, m.type, m.key,
                   pgonce._version_of(m.headers, convert_from(m.payload, 'UTF8')::jsonb), m.headers,
                   convert_from(m.payload, 'UTF8')::jsonb)::pgonce.projected
              from pgonce.inbox_message m
             where m.consumer = p_projection.from_consumer and m.seq > p_after and p_lane = 0
               -- One that is replayed is not done, and its marker keeps it from being applied again.
               and (m.status = 'processed' or p_projection.gate = 'marker' and exists (
                    select from pgonce.inbox_marker k
                     where k.tenant = m.tenant and k.message_id = m.message_id and k.source = 'event'
                       and k.consumer = 'projection:' || p_projection.projection and k.day = pgonce._day_of(m.message_id)))
             order by m.seq limit p_limit;
        return;
    end if;
    return query
        select o.seq, row(o.message_id, o.tenant, o.type, o.subject,
               pgonce._version_of(o.headers, o.payload), o.headers, o.payload)::pgonce.projected
          from pgonce.outbox o
         where (p_projection.topics is null or o.topic like any (p_projection.topics))
           and o.lane = p_lane and o.seq > p_after
         order by o.seq limit p_limit;
end
$$;
