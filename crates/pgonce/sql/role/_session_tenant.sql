-- pgonce._session_tenant(): the only tenant that this session may act for.
-- answers  null: its login role is not bound to a tenant
-- raises   42501 the role is bound to the tenant of the setting pgonce.tenant, and the setting is empty
-- note     by session_user, under whatever name it was bound: see pgonce._bound_as. Inside a function with the owner's rights
--          current_user is the owner
create or replace function pgonce._session_tenant()
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text;
    v_role   name;
begin
    -- Most of the time it has the name under which it was bound.
    select coalesce(b.tenant, current_setting('pgonce.tenant', true), '') into v_tenant
      from pgonce.tenant_binding b where b.role = session_user
       and exists (select from pg_catalog.pg_policy p join pg_catalog.pg_roles r on r.oid = any (p.polroles)
                    where p.polrelid = 'pgonce.role_grant'::regclass and p.polname = session_user and r.rolname = session_user);
    if not found then
        v_role := pgonce._bound_as(session_user);
        select coalesce(b.tenant, current_setting('pgonce.tenant', true), '') into v_tenant
          from pgonce.tenant_binding b where b.role = v_role;
    end if;
    if v_tenant = '' then
        raise exception 'role "%" acts for one tenant at a time, and none is set', session_user using errcode = '42501',
            hint = 'Begin the transaction with: select set_config(''pgonce.tenant'', ''the tenant'', true).';
    end if;
    return v_tenant;
end
$$;
