-- pgonce._claim_optimistic on Citus: as intent/_claim_optimistic.sql, delegated.
create or replace function pgonce._claim_optimistic(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (holds boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint) is not true
       or not pgonce._scope_is_allowed(p_tenant, p_scope, p_key) then
        perform pgonce._raise_bad_names(p_tenant, p_scope, p_key, p_fingerprint);
    end if;
    holds := pgonce._force_durable_commit() and current_setting('transaction_read_only') = 'off'
        and coalesce(current_setting('pgonce.attempt', true), '') = ''
        and pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key))
        and pgonce._open_attempt(p_tenant, p_scope, p_key) is not null;
    return next;
end
$$;
