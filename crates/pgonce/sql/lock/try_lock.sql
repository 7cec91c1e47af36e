-- pgonce.try_lock(p_name, p_tenant): takes a named lock until the end of the transaction, without waiting.
-- answers  true: you hold it; false: another transaction does
-- locks    one transaction-level advisory lock, separate from those of intents
-- writes   nothing
-- raises   22023 the name is empty or longer than 255 bytes; 42501 the session's role is bound to another tenant
-- example  select pgonce.try_lock('close:merchant-7:2026-01-31');
create or replace function pgonce.try_lock(p_name text, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if (octet_length(p_name) between 1 and 255) is not true then
        raise exception 'a lock needs a name of 1 to 255 bytes, not %', coalesce(octet_length(p_name)::text, 'null')
            using errcode = '22023', hint = 'For example ''close:merchant-7:2026-01-31''.';
    end if;
    perform pgonce._check_tenant(coalesce(p_tenant, ''));
    return pg_try_advisory_xact_lock(pgonce._lock_id(coalesce(p_tenant, ''), '', p_name));
end
$$;
