-- pgonce.lock(p_name, p_timeout, p_tenant): waits for a named lock, for a bounded time.
-- answers  true: you hold it until the end of the transaction; false: the timeout passed
-- locks    one transaction-level advisory lock, separate from those of intents
-- writes   nothing
-- raises   22023 a bad name, or a timeout that is not positive; 42501 the session's role is bound to another tenant
-- example  select pgonce.lock('close:merchant-7:2026-01-31', '2 seconds');
create or replace function pgonce.lock(p_name text, p_timeout interval, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_before text := current_setting('lock_timeout');
    v_ms     bigint := ceil(extract(epoch from p_timeout) * 1000);
begin
    if (v_ms between 1 and 2147483647) is not true then
        raise exception 'pgonce.lock needs a positive timeout, not %', coalesce(p_timeout::text, 'null')
            using errcode = '22023', hint = 'Not to wait at all, call pgonce.try_lock(name).';
    end if;
    if pgonce.try_lock(p_name, p_tenant) then
        return true;
    end if;
    begin
        perform set_config('lock_timeout', v_ms::text, true);
        perform pg_advisory_xact_lock(pgonce._lock_id(coalesce(p_tenant, ''), '', p_name));
        perform set_config('lock_timeout', v_before, true);
        return true;
    exception when lock_not_available then
        return false;
    end;
end
$$;
