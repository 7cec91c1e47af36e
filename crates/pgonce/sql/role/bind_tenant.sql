-- pgonce.bind_tenant(p_role, p_tenant): binds a login role to one tenant, or to the one that the setting pgonce.tenant names
--          where p_tenant is left out, or to none where it is empty. Owner only.
-- answers  nothing
-- locks    pgonce.role_grant, so callers take turns
-- writes   the role's row of pgonce.tenant_binding, and a policy of pgonce.role_grant that names the role, so that it stays bound when it
--          is renamed; where the row changes, one of pgonce.operator_act
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
    v_role   oid := (select r.oid from pg_catalog.pg_roles r where r.rolname = p_role collate "C");
    v_known  name;
    v_before jsonb;
    v_other  record;
begin
    -- One at a time, and none beside a grant: each looks at what the other writes. The lock of a policy; a weaker one that grows could
    -- be a deadlock.
    lock table pgonce.role_grant in access exclusive mode;
    if v_role is null then
        raise exception 'there is no role "%"', p_role using errcode = '42704', hint = 'Create it first.';
    elsif octet_length(p_tenant) > 255 then
        raise exception 'a role is bound to a tenant of at most 255 bytes' using errcode = '22023',
            hint = 'Leave the tenant out to bind the role to the setting pgonce.tenant.';
    elsif p_tenant collate "C" is distinct from '' and exists (
        select from pgonce.role_grant g join pg_catalog.pg_roles r on r.rolname = g.role
          join pg_catalog.pg_roles b on b.oid = v_role
         where g.part in ('relay', 'operator') and pgonce._is_granted(g.role)
           and (r.oid = b.oid or not b.rolsuper and pg_has_role(b.oid, r.oid, 'member'))) then
        raise exception 'role "%" has a part that acts for all tenants: relay or operator', p_role using errcode = '22023',
            hint = 'Bind roles that have the parts app, consumer or viewer.';
    end if;
    v_known := pgonce._bound_as(p_role);
    if v_known <> p_role then
        delete from pgonce.tenant_binding b where b.role = v_known returning to_jsonb(b) into v_before;
        execute format('drop policy %I on pgonce.role_grant', v_known);
    end if;
    -- The name may stand for another role, which was renamed since: that one stays bound, under its new name.
    for v_other in
        select r.rolname, b.tenant from pg_catalog.pg_policy p join pg_catalog.pg_roles r on r.oid = any (p.polroles) and r.oid <> v_role
          join pgonce.tenant_binding b on b.role = p.polname
         where p.polrelid = 'pgonce.role_grant'::regclass and p.polname = p_role collate "C"
    loop
        perform pgonce.bind_tenant(v_other.rolname, v_other.tenant);
    end loop;
    v_before := coalesce(v_before, (select to_jsonb(b) from pgonce.tenant_binding b where b.role = p_role collate "C"));
    delete from pgonce.tenant_binding b where b.role = p_role collate "C";
    if exists (select from pg_catalog.pg_policy p where p.polrelid = 'pgonce.role_grant'::regclass and p.polname = p_role collate "C") then
        execute format('drop policy %I on pgonce.role_grant', p_role);
    end if;
    if p_tenant collate "C" is distinct from '' then
        insert into pgonce.tenant_binding (role, tenant) values (p_role, p_tenant);
        execute format('create policy %I on pgonce.role_grant for select to %1$I using (false)', p_role);
    end if;
    perform pgonce._audit_rules('role ' || p_role, v_before, (select to_jsonb(b) from pgonce.tenant_binding b
        where b.role = p_role collate "C"), case p_tenant when '' then 'unbind' else 'bind' end);
end
$$;
revoke execute on function pgonce.bind_tenant(name, text) from public;
