-- pgonce._insert_new_markers(p_consumer, p_source, p_message_ids, p_hashes, p_days, p_keys, p_lock, p_tenant): takes on those
--          messages of a batch that are new. A part of the statement that applies them.
-- answers  the ids of the new ones. All others are copies, conflicts or misnamed: pgonce._insert_markers says which
-- locks    the markers, in the order in which they are given: sort them by id; p_lock, by which the statement that takes too
--          long is found
-- writes   one row of pgonce.inbox_marker for each new one
-- note     nothing is new where one of p_keys has a stored message that is not done. p_days as pgonce._insert_markers; no id
--          stands in the batch twice
create or replace function pgonce._insert_new_markers(p_consumer text, p_source text, p_message_ids text[], p_hashes bytea[],
    p_days integer[], p_keys text[], p_lock bigint, p_tenant text)
returns setof text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if cardinality(p_keys) > 0 then
        perform from pgonce._blocked_keys(p_consumer, p_keys, p_tenant);
        if found then
            return;
        end if;
    end if;
    if pgonce._message_fits(p_consumer, p_source, 'any', p_tenant) and pgonce._force_durable_commit()
        and pg_try_advisory_xact_lock_shared(p_lock) then
        return query
            insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
            select pgonce.now(), coalesce(date '1970-01-01' + g.day, '-infinity'), p_tenant, p_consumer, p_source, g.id, g.hash
              from unnest(p_message_ids, p_hashes, p_days) g (id, hash, day)
             where octet_length(g.id) between 1 and 255
            on conflict do nothing
            returning message_id;
    end if;
end
$$;
