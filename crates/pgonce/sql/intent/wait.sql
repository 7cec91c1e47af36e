-- pgonce.wait(p_scope, p_key, p_timeout, p_tenant): waits until the attempt that holds the intent in an open
--          transaction has ended. The lock itself wakes it, without polling.
-- answers  true: it ended, or there was none: claim again; false: the timeout passed
-- locks    the intent's advisory lock, shared, until the end of the transaction: end it at once
-- writes   nothing
-- raises   42501 the session's role is bound to another tenant
-- note     a lease holds no transaction: for a lease it returns at once; claim again after retry_after
-- example  select pgonce.wait('orders.create', 'order-7', '1 second');
create or replace function pgonce.wait(p_scope text, p_key text, p_timeout interval, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._check_tenant(p_tenant);
    perform set_config('lock_timeout',
        least(greatest(ceil(extract(epoch from p_timeout) * 1000), 1), 2147483647)::bigint::text, true);
    perform pg_advisory_xact_lock_shared(pgonce._lock_id(p_tenant, p_scope, p_key));
    return true;
exception when lock_not_available then
    return false;
end
$$;
