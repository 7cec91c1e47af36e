-- pgonce.try_lock(p_name, p_tenant): holds a name until the end of the transaction.
-- answers  true: you hold it; false: somebody else does
-- locks    one transaction-level advisory lock, apart from those of intents
-- raises   22023 when the name is empty or longer than 255 bytes
create or replace function pgonce.try_lock(p_name text, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = ''
as $$
begin
    if (octet_length(p_name) between 1 and 255) is not true then
        raise exception 'a lock needs a name of 1 to 255 bytes, not %', coalesce(octet_length(p_name)::text, 'null')
            using errcode = '22023', hint = 'For example ''close:merchant-7:2026-01-31''.';
    end if;
    return pg_try_advisory_xact_lock(pgonce._lock_id(coalesce(p_tenant, ''), '', p_name));
end
$$;
