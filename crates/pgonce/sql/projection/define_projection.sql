-- pgonce.define_projection(p_projection, p_into, p_apply, p_gate, p_topics, p_from_consumer, p_tenant): names
--          a table that is made of events, and the function that makes it, so that it can be rebuilt.
-- answers  nothing
-- locks    the projection's row
-- writes   the definition, or replaces it. p_apply is a function (regclass, pgonce.projected) that applies
--          one event to the table it is given. p_gate: 'version', each entity's versions only forward;
--          'marker', each event once, for changes whose order does not matter. Events come from the outbox
--          log (of p_topics, patterns with *), or from what p_from_consumer has stored and applied
-- raises   22023 or 23514 a value that does not fit; 42P01, 42883 no such table or function; 42P10 the table
--          has no primary key
-- note     p_into and p_apply need their schemas. p_apply runs with search_path = pg_catalog, pg_temp: qualify
--          the names in it, or give it a search_path of its own
-- example  create table public.balance (account text primary key, cents bigint);
--          create function public.apply_balance(p_into regclass, p_event pgonce.projected) returns void language plpgsql as 'begin end';
--          select pgonce.define_projection('balance', 'public.balance', 'public.apply_balance', 'marker');
create or replace function pgonce.define_projection(p_projection text, p_into text, p_apply text, p_gate text,
    p_topics text[] default null, p_from_consumer text default null, p_tenant text default '')
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_into  oid := to_regclass(p_into);
    v_apply oid := to_regprocedure(p_apply || '(regclass, pgonce.projected)');
begin
    if v_into is null then
        raise exception 'there is no table %', quote_nullable(p_into) using errcode = '42P01',
            hint = 'Name it with its schema, such as ''public.balance''.';
    elsif v_apply is null then
        raise exception 'there is no function %(regclass, pgonce.projected)', coalesce(p_apply, 'null') using errcode = '42883',
            hint = 'Name it with its schema, such as ''public.apply_balance''; it gets the table to write to and the event.';
    elsif not exists (select from pg_catalog.pg_index i where i.indrelid = v_into and i.indisprimary) then
        raise exception 'table % has no primary key', p_into using errcode = '42P10',
            hint = 'A projection is compared and replaced row by row: give it one.';
    end if;
    insert into pgonce.projection as p (tenant, projection, into_table, apply, gate, from_consumer, topics, begins_after, defined_at)
    values (p_tenant, p_projection, (select format('%I.%I', n.nspname, c.relname) from pg_catalog.pg_class c
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = v_into),
        (select format('%I.%I', n.nspname, f.proname) from pg_catalog.pg_proc f
            join pg_catalog.pg_namespace n on n.oid = f.pronamespace where f.oid = v_apply),
        p_gate, p_from_consumer, pgonce._like_patterns(p_topics),
        (select min(o.from_seq) - 1 from pgonce.outbox_partition o), pgonce.now())
    on conflict on constraint one_row_per_projection do update
        set into_table = excluded.into_table, apply = excluded.apply, gate = excluded.gate,
            from_consumer = excluded.from_consumer, topics = excluded.topics, defined_at = excluded.defined_at;
    if p_gate = 'marker' then
        -- A replay may come at any time: what was applied is known for ever.
        perform pgonce.define_inbox('projection:' || p_projection, null);
    end if;
end
$$;
