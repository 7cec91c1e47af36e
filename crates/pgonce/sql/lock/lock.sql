-- pgonce.lock(p_name, p_wait, p_tenant): waits for a name, for a bounded time.
-- answers  true: you hold it until the end of the transaction; false: the time ran out
-- locks    one transaction-level advisory lock, apart from those of intents
-- raises   22023 for a bad name or a wait that is not positive
create or replace function pgonce.lock(p_name text, p_wait interval, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = ''
as $$
declare
    v_before text := current_setting('lock_timeout');
    v_ms     bigint := ceil(extract(epoch from p_wait) * 1000);
begin
    if (v_ms between 1 and 2147483647) is not true then
        raise exception 'pgonce.lock needs a positive wait, not %', coalesce(p_wait::text, 'null')
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
