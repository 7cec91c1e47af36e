-- pgonce._bound_as(p_role): the name under which pgonce.tenant_binding has a role: that of the day when it was bound.
-- answers  the role's own name, where it is the same or the role is not bound
-- note     PostgreSQL takes the role of a policy along when the role is renamed, dumped, restored or dropped. So a policy of
--          pgonce.role_grant, which few read, names each bound role; it is called as the row is. Where there is none (restored
--          before the role was there) the name alone counts, so that the role stays bound
create or replace function pgonce._bound_as(p_role name)
returns name
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_role oid := (select r.oid from pg_catalog.pg_roles r where r.rolname = p_role collate "C");
begin
    if exists (select from pg_catalog.pg_policy p where p.polrelid = 'pgonce.role_grant'::regclass and p.polname = p_role collate "C"
               and v_role = any (p.polroles)) then
        return p_role;
    end if;
    -- By the role: there may be a policy for each of very many.
    return coalesce((select b.role
          from pg_catalog.pg_shdepend d join pg_catalog.pg_policy p on p.oid = d.objid join pgonce.tenant_binding b on b.role = p.polname
         where d.refclassid = 'pg_catalog.pg_authid'::regclass and d.refobjid = v_role
           and d.dbid = (select c.oid from pg_catalog.pg_database c where c.datname = current_database())
           and d.classid = 'pg_catalog.pg_policy'::regclass and p.polrelid = 'pgonce.role_grant'::regclass), p_role);
end
$$;
