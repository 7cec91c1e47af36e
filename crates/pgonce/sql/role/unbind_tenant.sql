-- pgonce.unbind_tenant(p_role): lets a role act for all tenants again. Owner only.
-- answers  true: it was bound
-- locks    the role's row of pgonce.tenant_binding
-- writes   deletes that row
-- raises   nothing
-- example  select pgonce.unbind_tenant('pgonce_bound');
create or replace function pgonce.unbind_tenant(p_role name)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgonce.tenant_binding b where b.role = p_role;
    return found;
end
$$;
revoke execute on function pgonce.unbind_tenant(name) from public;
