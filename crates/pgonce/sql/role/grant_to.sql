-- pgonce.grant_to(p_role, p_part): lets a role do one part of pgonce's work, and no more: app, relay, consumer, operator or
--          viewer. Owner only.
-- answers  nothing
-- locks    pgonce.role_grant and the catalogue rows of what it grants; callers take turns
-- writes   one row of pgonce.role_grant and, where it is new, one of pgonce.operator_act; grants, and policies for those who may read all
-- raises   22023 the part is none of these, or is relay or operator and the role, or a member of it, is bound to a tenant;
--          42704 there is no such role
-- note     a role may have several parts. Calling it again changes nothing; `migrate up` calls it again for every role, so that
--          new tables and functions are covered. pgonce._grants lists what each part has. What a dropped role had, another role of its
--          name does not get; nor does a role get again what a dump that was restored without privileges left out
-- example  create role pgonce_example;
--          select pgonce.grant_to('pgonce_example', 'app');
create or replace function pgonce.grant_to(p_role name, p_part text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_bound name;
begin
    -- None beside pgonce.bind_tenant: each looks at what the other writes.
    lock table pgonce.role_grant in access exclusive mode;
    if (p_part collate "C" in ('app', 'relay', 'consumer', 'operator', 'viewer')) is not true then
        raise exception 'there is no part %', coalesce(quote_literal(p_part), 'null') using errcode = '22023',
            hint = 'The parts are app, relay, consumer, operator and viewer.';
    elsif not exists (select from pg_catalog.pg_roles r where r.rolname = p_role collate "C") then
        raise exception 'there is no role "%"', coalesce(p_role, 'null') using errcode = '42704',
            hint = format('Create it first: create role %I login.', coalesce(p_role, 'shop'));
    elsif p_part collate "C" in ('relay', 'operator') then
        select b.rolname into v_bound from pg_catalog.pg_roles b join pg_catalog.pg_roles r on r.rolname = p_role collate "C"
         where (r.oid = b.oid or not b.rolsuper and pg_has_role(b.oid, r.oid, 'member'))
           and exists (select from pgonce.tenant_binding t where t.role = pgonce._bound_as(b.rolname)) limit 1;
        if found then
            raise exception 'role "%" is bound to a tenant, and % acts for all of them', v_bound, p_part using errcode = '22023',
                hint = format('Unbind it first: select pgonce.bind_tenant(%L, %L).', v_bound, '');
        end if;
    end if;
    if not pgonce._is_granted(p_role) then
        delete from pgonce.role_grant g where g.role = p_role collate "C";
        execute format('grant usage on schema %I to %I', (select n.nspname from pg_catalog.pg_class c
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = 'pgonce.intent'::regclass), p_role);
    end if;
    insert into pgonce.role_grant (role, part) values (p_role, p_part) on conflict on constraint one_row_per_part do nothing;
    if found then
        perform pgonce._audit_act('grant', 'role ' || p_role, p_part, null);
    end if;
    perform pgonce._apply_grants(p_role);
end
$$;
revoke execute on function pgonce.grant_to(name, text) from public;
