-- pgonce.accept_batch(p_consumer, p_source, p_message_ids, p_hashes, p_tenant): decides which of these
--          messages a consumer applies now. Call it in the transaction of the effect; the answer can be
--          joined in its statement.
-- answers  the ids that are new; each once, however often it is in the batch
-- locks    the messages' markers, as pgonce.accept
-- writes   one row of pgonce.inbox_marker for each new one
-- raises   P4043 more than 10000 messages; P4050 an id came before with another payload; 22023 a name that does not fit
-- example  select * from pgonce.accept_batch('billing', 'shop', '{evt-2,evt-3,evt-2}');
create or replace function pgonce.accept_batch(p_consumer text, p_source text, p_message_ids text[],
    p_hashes bytea[] default null, p_tenant text default '')
returns setof text
language plpgsql volatile
as $$
declare
    v_old      integer[];
    v_conflict integer[];
begin
    select pg_catalog.array_agg(m.ordinal), pg_catalog.array_agg(m.ordinal order by m.ordinal)
               filter (where m.verdict operator(pg_catalog.=) 'conflict')
      into v_old, v_conflict
      from pgonce._insert_markers(p_consumer, p_source, p_message_ids, p_hashes, p_tenant) m;
    if v_conflict is not null then
        perform pgonce._raise_message_id_reused(p_consumer, p_source,
            array(select p_message_ids[n] from pg_catalog.unnest(v_conflict) n), p_tenant);
    elsif v_old is null then
        return query select pg_catalog.unnest(p_message_ids);
    else
        return query
            select p_message_ids[r.n]
              from (select pg_catalog.generate_series(1, pg_catalog.cardinality(p_message_ids)) as n
                    except select pg_catalog.unnest(v_old)) r order by r.n;
    end if;
end
$$;
