-- 0016_bound_roles: roles that are bound to a tenant stay bound when they are renamed: a policy names each. See pgonce._bound_as.
-- breaking: no

alter table pgonce.role_grant enable row level security;
do $$
declare
    v_role name;
begin
    for v_role in select b.role from pgonce.tenant_binding b join pg_roles r on r.rolname = b.role loop
        execute format('create policy %I on pgonce.role_grant for select to %1$I using (false)', v_role);
    end loop;
end $$;
