-- pgonce.mark_messages(p_consumer, p_source, p_message_ids, p_hashes, p_tenant): takes a batch on: which of
--          its messages are new is decided by one insert.
-- answers  for each message its place in the batch, from 1, and a verdict:
--            new        apply it
--            duplicate  it was applied before, or stands earlier in the batch
--            conflict   its id came before with another payload: do not apply it, keep it for a person
-- locks    the markers, in the order of the ids: two batches that share messages cannot deadlock on them
-- writes   one row of pgonce.inbox_marker for each new one
-- raises   22023 a name or an id that does not fit
create or replace function pgonce.mark_messages(p_consumer text, p_source text, p_message_ids text[],
    p_hashes bytea[], p_tenant text)
returns table (ordinal integer, verdict text)
language plpgsql volatile
as $$
declare
    v_count integer := coalesce(cardinality(p_message_ids), 0);
    v_left  integer[];
    v_made  integer[];
    v_bad   text;
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
        and octet_length(p_tenant) <= 255) is not true then
        perform pgonce.refuse_message(p_consumer, p_source, '', p_tenant);
    elsif cardinality(p_hashes) <> v_count then
        raise exception 'there are % messages and % hashes', v_count, cardinality(p_hashes) using errcode = '22023',
            hint = 'Pass one hash for each message, null where you have none; or none at all.';
    end if;
    select i into v_bad from unnest(p_message_ids) i where (octet_length(i) between 1 and 255) is not true limit 1;
    if found then
        perform pgonce.refuse_message(p_consumer, p_source, v_bad, p_tenant);
    end if;
    perform pgonce.insist_on_durable_commit();

    for v_try in 1..10 loop
        with given as materialized (
            select distinct on (g.id collate "C") g.id, g.hash, g.n::integer as n
              from unnest(p_message_ids, p_hashes) with ordinality g (id, hash, n)
             where v_left is null or g.n = any (v_left)
             order by g.id collate "C", g.n
        ), made as (
            insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
            select pgonce.now(), pgonce.day_of(g.id), p_tenant, p_consumer, p_source, g.id, g.hash
              from given g order by g.id collate "C"
            on conflict do nothing
            returning message_id
        )
        select coalesce(array_agg(g.n), '{}') into v_made from given g join made m on m.message_id = g.id;
        return query select n, 'new' from unnest(v_made) n;
        if v_left is null and cardinality(v_made) = v_count then
            return;
        end if;
        return query
            select g.n::integer, case when m.hash <> g.hash then 'conflict' else 'duplicate' end
              from unnest(p_message_ids, p_hashes) with ordinality g (id, hash, n)
              join pgonce.inbox_marker m on m.tenant = p_tenant and m.consumer = p_consumer and m.source = p_source
               and m.message_id = g.id and m.day = pgonce.day_of(g.id)
             where g.n <> all (v_made) and (v_left is null or g.n = any (v_left));
        -- Neither made nor there: purged in between. Look again.
        v_left := array(
            select g.n from unnest(p_message_ids) with ordinality g (id, n)
             where g.n <> all (v_made) and (v_left is null or g.n = any (v_left))
               and not exists (select from pgonce.inbox_marker m where m.tenant = p_tenant and m.consumer = p_consumer
                    and m.source = p_source and m.message_id = g.id and m.day = pgonce.day_of(g.id)));
        if cardinality(v_left) = 0 then
            return;
        end if;
    end loop;
    raise exception 'the markers of consumer "%" change too fast', p_consumer using errcode = '40001',
        hint = 'Run the whole transaction again.';
end
$$;
