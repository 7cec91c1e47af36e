-- pgonce.define_projection(p_projection, p_into, p_apply, p_gate, p_topics, p_from_consumer, p_tenant): names
--          a table that is made of events, and the function that makes it, so that it can be rebuilt.
-- answers  nothing
-- locks    the projection's row
-- writes   the definition, or replaces it; where it changes, a row of pgonce.operator_act. p_apply is a function (regclass, pgonce.projected) that applies
--          one event to the table it is given. p_gate: 'version', each entity's versions only forward;
--          'marker', each event once, for changes whose order does not matter. Events come from the outbox
--          log (of p_topics, patterns with *), or from what p_from_consumer has stored and applied
-- raises   22023 or 23514 a value that does not fit; 42P01, 42883 no such table or function; 42P10 the table
--          has no primary key; 42501 the projection exists, and its table and function belong to others than these: consumers run
--          them with their rights, so that only the owner of pgonce changes that. Its own, or a superuser's, may take their place
-- note     p_into and p_apply are found on the caller's search_path, once. p_apply runs with search_path = pg_catalog, pg_temp: qualify
--          the names in it, or give it a search_path of its own
-- example  create table public.balance (account text primary key, cents bigint);
--          create function public.apply_balance(p_into regclass, p_event pgonce.projected) returns void language plpgsql as 'begin end';
--          select pgonce.define_projection('balance', 'public.balance', 'public.apply_balance', 'marker');
create or replace function pgonce.define_projection(p_projection text, p_into text, p_apply text, p_gate text,
    p_topics text[] default null, p_from_consumer text default null, p_tenant text default '')
returns void
language plpgsql volatile
as $$
begin
    perform pgonce._define_projection(p_projection, p_into, p_apply, p_gate, p_topics, p_from_consumer, p_tenant,
        pg_catalog.to_regclass(p_into),
        pg_catalog.to_regprocedure(p_apply operator(pg_catalog.||) '(pg_catalog.regclass, pgonce.projected)'));
end
$$;
