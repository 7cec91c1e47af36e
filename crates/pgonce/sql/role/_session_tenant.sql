-- pgonce._session_tenant(): the only tenant that this session may act for.
-- answers  null: its login role is not bound to a tenant
-- raises   42501 the role is bound to the tenant of the setting pgonce.tenant, and the setting is empty
-- note     by session_user: inside a function with the owner's rights current_user is the owner
create or replace function pgonce._session_tenant()
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text;
begin
    select coalesce(b.tenant, current_setting('pgonce.tenant', true), '') into v_tenant
      from pgonce.tenant_binding b where b.role = session_user;
    if v_tenant = '' then
        raise exception 'role "%" acts for one tenant at a time, and none is set', session_user using errcode = '42501',
            hint = 'Begin the transaction with: select set_config(''pgonce.tenant'', ''the tenant'', true).';
    end if;
    return v_tenant;
end
$$;
