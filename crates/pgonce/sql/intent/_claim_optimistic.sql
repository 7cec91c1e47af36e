-- pgonce._claim_optimistic(p_scope, p_key, p_fingerprint, p_tenant): the optimistic claim: takes the intent's
--          lock and does not look. The insert at the end decides.
-- answers  one row: true, go on under fence 1; false, another attempt holds it, the transaction holds another
--          attempt, or nothing can be written here: ask pgonce.claim
-- locks    the intent's advisory lock until the end of the transaction
-- raises   P4000 P4001 P4003 22023 bad input
create or replace function pgonce._claim_optimistic(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (holds boolean)
language sql stable
begin atomic
    select case
        when pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint) and pgonce._scope_is_allowed(p_tenant, p_scope, p_key)
            then pgonce._force_durable_commit() and current_setting('transaction_read_only') = 'off'
                 and coalesce(current_setting('pgonce.attempt', true), '') = ''
                 and pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key))
                 and set_config('pgonce.attempt', pgonce._intent_name(p_tenant, p_scope, p_key), true) is not null
                 and (pgonce._is_unguarded(p_scope) or pgonce._guard_claim(p_tenant, p_scope, p_key))
        else pgonce._raise_bad_names(p_tenant, p_scope, p_key, p_fingerprint)
        end;
end;
