-- pgonce.wait(p_scope, p_key, p_at_most, p_tenant): sleeps until the attempt that holds the
--          intent in an open transaction has ended. Woken by the lock itself, no polling.
-- answers  true: it ended (or none was there), claim again; false: the time ran out
-- locks    the intent's advisory lock, shared, until the end of the transaction: end it at once
-- note     a lease holds no transaction: for a lease it returns at once, ask again after a while
create or replace function pgonce.wait(p_scope text, p_key text, p_at_most interval, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = ''
as $$
begin
    perform set_config('lock_timeout',
        least(greatest(ceil(extract(epoch from p_at_most) * 1000), 1), 2147483647)::bigint::text, true);
    perform pg_advisory_xact_lock_shared(pgonce._lock_id(p_tenant, p_scope, p_key));
    return true;
exception when lock_not_available then
    return false;
end
$$;
