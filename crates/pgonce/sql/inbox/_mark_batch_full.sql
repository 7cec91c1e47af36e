-- pgonce._mark_batch_full(p_consumer, p_source, p_message_ids, p_hashes, p_tenant, p_days, p_made): pgonce._insert_markers,
--          for a batch of which the quick insert took only p_made: others are known, or do not fit.
-- answers  as pgonce._insert_markers
-- locks    as pgonce._insert_markers
-- writes   as pgonce._insert_markers
-- raises   22023 a name or an id that does not fit; 40001 markers come and go
create or replace function pgonce._mark_batch_full(p_consumer text, p_source text, p_message_ids text[],
    p_hashes bytea[], p_tenant text, p_days integer[], p_made text[])
returns table (ordinal integer, verdict text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
    -- A plan from when the table was small must not read all of it later. And one plan for every day: its day is a
    -- parameter, by which the server opens that partition alone; without this it would make a new plan for each call.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_count    integer := coalesce(cardinality(p_message_ids), 0);
    v_days     date[] := case when p_days is null
        then array(select pgonce._day_of(u.id) from unnest(p_message_ids) with ordinality u (id, n) order by u.n)
        else array(select coalesce(date '1970-01-01' + u.day, '-infinity') from unnest(p_days) with ordinality u (day, n)
            order by u.n) end;
    v_made     text[] := p_made;
    v_more     text[];
    v_new      boolean[];
    v_day      date;
    v_ordinals integer[];
    v_verdicts text[];
    v_bad      text;
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
        and octet_length(p_tenant) <= 255) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, '', p_tenant);
    elsif cardinality(p_hashes) <> v_count then
        raise exception 'there are % messages and % hashes', v_count, cardinality(p_hashes) using errcode = '22023',
            hint = 'Pass one hash for each message, null where you have none; or none at all.';
    end if;
    for v_try in 1..10 loop
        -- What this call made is new where it stands first in the batch.
        v_new := case when v_made is not null then array(
            select g.first and g.id collate "C" in (select m.id from unnest(v_made) m (id))
              from (select u.id, u.n, row_number() over (partition by u.id collate "C" order by u.n) = 1 as first
                      from unnest(p_message_ids) with ordinality u (id, n)) g
             order by g.n) end;
        v_ordinals := '{}';
        v_verdicts := '{}';
        for v_day in select distinct d from unnest(v_days) d loop
            -- One by one, by the key: a join of the two would read all that the consumer ever accepted.
            select v_ordinals || array_agg(u.n::integer), v_verdicts || array_agg(case when m.message_id is null then 'gone'
                       when m.hash <> u.hash then 'conflict' else 'duplicate' end)
              into v_ordinals, v_verdicts
              from unnest(p_message_ids, p_hashes, v_days, v_new) with ordinality u (id, hash, day, is_new, n)
              left join lateral (
                    select x.message_id, x.hash from pgonce.inbox_marker x
                     where x.tenant = p_tenant collate "C" and x.consumer = p_consumer collate "C" and x.source = p_source collate "C"
                       and x.message_id = u.id collate "C" and x.day = v_day offset 0) m on true
             where u.day = v_day and u.is_new is not true;
        end loop;
        if ('gone' = any (v_verdicts)) is not true then
            return query select * from unnest(v_ordinals, v_verdicts);
            return;
        end if;
        -- Neither made nor there: it does not fit, or was purged in between. Try those again.
        select i into v_bad from unnest(p_message_ids) i where (octet_length(i) between 1 and 255) is not true limit 1;
        if found then
            perform pgonce._raise_message_fenced(p_consumer, p_source, v_bad, p_tenant);
        end if;
        with made as (
            insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
            select pgonce.now(), u.day, p_tenant, p_consumer, p_source, u.id, u.hash
              from unnest(p_message_ids, p_hashes, v_days) with ordinality u (id, hash, day, n)
              join unnest(v_ordinals, v_verdicts) g (n, verdict) on g.n = u.n and g.verdict = 'gone'
             order by u.id collate "C", u.n
            on conflict do nothing
            returning message_id
        )
        select array_agg(m.message_id) into v_more from made m;
        v_made := v_made || v_more;
    end loop;
    raise exception 'the markers of consumer "%" change too fast', p_consumer using errcode = '40001',
        hint = 'Run the whole transaction again.';
end
$$;
