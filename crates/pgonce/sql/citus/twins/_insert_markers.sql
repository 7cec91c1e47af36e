-- pgonce._insert_markers on Citus: as inbox/_insert_markers.sql.
-- note     an insert of many rows has to name them one by one: Citus sends one from a query through the coordinator, where
--          what it returns is lost. In the order of the ids, as there
create or replace function pgonce._insert_markers(p_consumer text, p_source text, p_message_ids text[],
    p_hashes bytea[], p_tenant text, p_days integer[] default null)
returns table (ordinal integer, verdict text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_rows   constant integer := 500;
    v_count  integer := coalesce(cardinality(p_message_ids), 0);
    v_now    timestamptz;
    v_bad    text;
    v_values text;
    v_id     text;
    v_seen   text[] := '{}';
    v_rest   text[];
    v_ids    text[];
    v_more   bytea[];
    v_known  text[] := '{}';
    v_hashes bytea[] := '{}';
begin
    if v_count > 10000 then
        raise exception 'a batch has % messages; at most 10000', v_count using errcode = 'P4043',
            hint = 'Accept them in several batches.';
    elsif pgonce._message_fits(p_consumer, p_source, 'any', p_tenant) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, '', p_tenant);
    elsif cardinality(p_hashes) <> v_count then
        raise exception 'there are % messages and % hashes', v_count, cardinality(p_hashes) using errcode = '22023',
            hint = 'Pass one hash for each message, null where you have none; or none at all.';
    end if;
    select i into v_bad from unnest(p_message_ids) i where (octet_length(i) between 1 and 255) is not true limit 1;
    if found then
        perform pgonce._raise_message_fenced(p_consumer, p_source, v_bad, p_tenant);
    end if;
    perform pgonce._force_durable_commit();
    for v_try in 1..11 loop
        v_rest := array(select distinct i.id from unnest(p_message_ids) i (id)
            where not exists (select from unnest(v_seen) s (id) where s.id = i.id));
        exit when cardinality(v_rest) = 0;
        if v_try > 10 then
            raise exception 'the markers of consumer "%" change too fast', p_consumer using errcode = '40001',
                hint = 'Run the whole transaction again.';
        end if;
        v_now := pgonce.now();
        for v_values in
            select string_agg(format('(%L, %L, %L, %L, %L, %L, %L)', v_now, pgonce._day_of(g.id), p_tenant, p_consumer, p_source,
                       g.id, g.hash), ', ' order by g.place)
              from (select f.id, f.hash, row_number() over (order by f.id collate "C") as place
                      from (select i.id, i.hash, row_number() over (partition by i.id order by i.n) as nth
                              from unnest(p_message_ids, p_hashes) with ordinality i (id, hash, n)) f
                      join unnest(v_rest) r (id) on r.id = f.id
                     where f.nth = 1) g
             group by (g.place - 1) / c_rows order by min(g.place)
        loop
            for v_id in execute 'insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash) values '
                || v_values || ' on conflict do nothing returning message_id'
            loop
                v_seen := v_seen || v_id;
            end loop;
        end loop;
        v_rest := array(select r.id from unnest(v_rest) r (id) where not exists (select from unnest(v_seen) s (id) where s.id = r.id));
        exit when cardinality(v_rest) = 0;
        -- These were there before, or were purged in between: then once more.
        select array_agg(m.message_id), array_agg(m.hash) into v_ids, v_more from pgonce.inbox_marker m
         where m.tenant = p_tenant and m.consumer = p_consumer collate "C" and m.source = p_source collate "C"
           and m.message_id = any (v_rest);
        v_known := v_known || v_ids;
        v_hashes := v_hashes || v_more;
        v_seen := v_seen || v_ids;
    end loop;
    return query
        select u.n::integer, case when case when k.id is null then u.first_hash else k.hash end <> u.hash then 'conflict' else 'duplicate' end
          from (select i.id, i.hash, i.n, row_number() over same as nth, first_value(i.hash) over same as first_hash
                  from unnest(p_message_ids, p_hashes) with ordinality i (id, hash, n)
                window same as (partition by i.id order by i.n)) u
          left join unnest(v_known, v_hashes) k (id, hash) on k.id = u.id
         where u.nth > 1 or k.id is not null
         order by u.n;
end
$$;
