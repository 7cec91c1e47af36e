-- pgonce._guard_scopes(p_scopes): claims in these scopes look whether their contract has a commit guard.
-- answers  nothing
-- locks    those who change the same; until the end of the transaction
-- writes   the body of pgonce._guarded_scopes, where a scope is new in it
-- raises   P4105 pgonce is distributed by Citus: the guard's rows are on one server
-- note     it only adds: a contract may be written beside this one that is not yet to be seen. `pgonce migrate up` begins
--          anew from the contracts
create or replace function pgonce._guard_scopes(p_scopes text[])
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_known text[];
begin
    if to_regclass('pgonce.tenant_epoch') is not null then
        raise exception 'a commit guard cannot be had where pgonce is distributed by Citus' using errcode = 'P4105',
            hint = 'Define the scope without p_commit_guard.';
    end if;
    -- The lock of migrations and grants: PostgreSQL fails where two replace one function.
    perform pg_advisory_xact_lock(20260102, hashtext(n.nspname)) from pg_catalog.pg_namespace n
       join pg_catalog.pg_class c on c.relnamespace = n.oid where c.oid = 'pgonce.intent'::regclass;
    -- An advisory lock takes in nothing of what others changed meanwhile: the body would be the one that this session saw before.
    -- The lock of a table does. This one is in nobody's way, and in a mode that a transaction that claimed does not hold already.
    lock table pgonce.open_claim in row share mode;
    v_known := pgonce._guarded_scopes();
    if not p_scopes collate "C" <@ v_known then
        execute format('create or replace function pgonce._guarded_scopes() returns text[] '
            'language sql stable parallel safe return %L::text[]',
            (select array_agg(distinct u.scope collate "C") from unnest(v_known || p_scopes) as u (scope)));
    end if;
end
$$;
