-- pgonce.bind_tenant(p_role, p_tenant): binds a login role to one tenant, or to the one that the setting pgonce.tenant names
--          where p_tenant is left out, or to none where it is empty. Owner only.
-- answers  nothing
-- locks    the role's row of pgonce.tenant_binding
-- writes   that row; where it changes, one of pgonce.operator_act
-- raises   42704 there is no such role; 22023 p_tenant is longer than 255 bytes, or the role has the part relay or operator,
--          itself or through another role: what they do is for all tenants
-- note     it holds where pgonce.isolate_tenants(true) was called. A role that is bound by the setting can set it: that keeps
--          a mistake from reaching another tenant, not a stranger who sends SQL of his own; a role for each tenant does
-- example  create role pgonce_bound;
--          select pgonce.bind_tenant('pgonce_bound', 'acme');
--          select pgonce.bind_tenant('pgonce_bound', '');
create or replace function pgonce.bind_tenant(p_role name, p_tenant text default null)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_before jsonb := (select to_jsonb(b) from pgonce.tenant_binding b where b.role = p_role collate "C");
begin
    if not exists (select from pg_catalog.pg_roles r where r.rolname = p_role collate "C") then
        raise exception 'there is no role "%"', p_role using errcode = '42704', hint = 'Create it first.';
    elsif octet_length(p_tenant) > 255 then
        raise exception 'a role is bound to a tenant of at most 255 bytes' using errcode = '22023',
            hint = 'Leave the tenant out to bind the role to the setting pgonce.tenant.';
    elsif p_tenant collate "C" is distinct from '' and exists (
        select from pgonce.role_grant g join pg_catalog.pg_roles r on r.rolname = g.role
          join pg_catalog.pg_roles b on b.rolname = p_role collate "C"
         where g.part in ('relay', 'operator') and (r.oid = b.oid or not b.rolsuper and pg_has_role(b.oid, r.oid, 'member'))) then
        raise exception 'role "%" has a part that acts for all tenants: relay or operator', p_role using errcode = '22023',
            hint = 'Bind roles that have the parts app, consumer or viewer.';
    elsif p_tenant collate "C" = '' then
        delete from pgonce.tenant_binding b where b.role = p_role collate "C";
        perform pgonce._audit_rules('role ' || p_role, v_before, null, 'unbind');
        return;
    end if;
    insert into pgonce.tenant_binding as b (role, tenant) values (p_role, p_tenant)
    on conflict on constraint one_binding_per_role do update set tenant = excluded.tenant;
    perform pgonce._audit_rules('role ' || p_role, v_before, (select to_jsonb(b) from pgonce.tenant_binding b
        where b.role = p_role collate "C"), 'bind');
end
$$;
revoke execute on function pgonce.bind_tenant(name, text) from public;
