-- pgonce._check_tenant(p_tenant): may this session act for this tenant? For what row level security does not see: locks.
-- answers  true
-- raises   42501 tenants are isolated, and the session's role is bound to another one
create or replace function pgonce._check_tenant(p_tenant text)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgonce._tenant_is_allowed(p_tenant) then
        raise exception 'role "%" is bound to another tenant', session_user using errcode = '42501',
            hint = 'Name the tenant that pgonce.bind_tenant, or the setting pgonce.tenant, binds it to.';
    end if;
    return true;
end
$$;
