-- pgonce.claim_first on Citus: as intent/claim_first.sql, delegated.
-- note     a function in a part of a larger statement is not delegated: call it by itself, then the effect, then
--          pgonce.succeed, in one transaction
create or replace function pgonce.claim_first(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (fence bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    fence := case when h.holds then 1::bigint else pgonce._raise_busy() end
        from pgonce._claim_optimistic(p_scope, p_key, p_fingerprint, p_tenant) h;
    return next;
end
$$;
