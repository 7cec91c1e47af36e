-- pgonce._insert_markers(p_consumer, p_source, p_message_ids, p_hashes, p_tenant, p_days): takes a batch on: which of
--          its messages are new is decided by one insert.
-- answers  the messages that are not new, each by its place in the batch, from 1, and a verdict; all others
--          are to be applied:
--            duplicate  it was applied before, or stands earlier in the batch
--            conflict   its id came before with another payload: do not apply it, store it for manual action
-- locks    the markers, in the order of the ids: two batches that share messages cannot deadlock on them
-- writes   one row of pgonce.inbox_marker for each new one
-- raises   22023 a name or an id that does not fit; P4043 more than 10000 messages
-- note     p_days: the days of the ids by pgonce._day_of, counted from 1970, null for none. A caller who gives them expects
--          copies: then it looks before it inserts
create or replace function pgonce._insert_markers(p_consumer text, p_source text, p_message_ids text[],
    p_hashes bytea[], p_tenant text, p_days integer[] default null)
returns table (ordinal integer, verdict text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_made pg_catalog.text[];
begin
    if pg_catalog.cardinality(p_message_ids) operator(pg_catalog.>) 10000 then
        raise exception 'a batch has % messages; at most 10000', pg_catalog.cardinality(p_message_ids) using errcode = 'P4043',
            hint = 'Accept them in several batches.';
    end if;
    -- Mostly all of them are new: one insert, and whatever it does not fit goes the long way.
    if p_days is null and pgonce._message_fits(p_consumer, p_source, 'any', p_tenant)
        and (pg_catalog.cardinality(p_hashes) operator(pg_catalog.<>) pg_catalog.cardinality(p_message_ids)) is not true
        and pgonce._force_durable_commit() then
        with made as (
            insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
            select pgonce.now(), pgonce._day_of(g.id), p_tenant, p_consumer, p_source, g.id, g.hash
              from rows from (pg_catalog.unnest(p_message_ids), pg_catalog.unnest(p_hashes)) with ordinality g (id, hash, n)
             where pgonce._message_fits('any', 'any', g.id, '')
             order by g.id collate "C", g.n
            on conflict do nothing
            returning message_id
        )
        select pg_catalog.array_agg(m.message_id) into v_made from made m;
        if pg_catalog.cardinality(v_made) operator(pg_catalog.=) pg_catalog.cardinality(p_message_ids) then
            return;
        end if;
    end if;
    return query select s.ordinal, s.verdict
        from pgonce._mark_batch_full(p_consumer, p_source, p_message_ids, p_hashes, p_tenant, p_days, v_made) s;
end
$$;
