-- pgonce._apply_grants(p_role): gives a role exactly what its parts in pgonce.role_grant need.
-- locks    the catalogue rows of what it changes; callers take turns
-- writes   deletes the rows of a dropped role whose name this one has; grants; policies for those who may read all
-- raises   42704 there is no such role
-- note     revokes first: what a part had in an earlier version goes with it. Policies are found by their roles: a dump keeps names, and
--          the roles that it is restored to have other numbers
create or replace function pgonce._apply_grants(p_role name)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_schema text;
    v_role   oid := (select r.oid from pg_catalog.pg_roles r where r.rolname = p_role collate "C");
    v_policy text collate "C";
    v_parts  text[] collate "C";
    v_reads  boolean;
    v_what   record;
begin
    select n.nspname into strict v_schema from pg_catalog.pg_namespace n
      join pg_catalog.pg_class c on c.relnamespace = n.oid
     where c.oid = 'pgonce.intent'::regclass;
    -- One at a time, and none beside a migration: PostgreSQL fails where two change one object's rights.
    perform pg_advisory_xact_lock(20260102, hashtext(v_schema));
    if not pgonce._is_granted(p_role) then
        delete from pgonce.role_grant g where g.role = p_role collate "C";
    end if;
    select array_agg(g.part) into v_parts from pgonce.role_grant g where g.role = p_role collate "C";
    v_reads := coalesce('operator' = any (v_parts), false);
    if v_role is null then
        raise exception 'there is no role "%"', coalesce(p_role, 'null') using errcode = '42704', hint = 'Create it first.';
    end if;
    execute format('revoke all on all tables in schema %I from %I', v_schema, p_role);
    execute format('revoke all on all sequences in schema %I from %I', v_schema, p_role);
    execute format('revoke all on all functions in schema %I from %I', v_schema, p_role);
    execute format('revoke all on schema %I from %I', v_schema, p_role);
    if v_parts is not null then
        execute format('grant usage on schema %I to %I', v_schema, p_role);
        for v_what in
            select g.privilege, g.object, g.columns from pgonce._grants() g
             where g.part = any (v_parts || array['every'])
            union all
            select 'usage', 'type ' || t.oid::regtype, null from pg_catalog.pg_type t
              left join pg_catalog.pg_class c on c.oid = t.typrelid
             where t.typnamespace = v_schema::regnamespace and (t.typtype in ('e', 'd') or c.relkind = 'c')
        loop
            execute format('grant %s%s on %s to %I', v_what.privilege, ' (' || v_what.columns || ')', v_what.object, p_role);
        end loop;
    end if;
    for v_what in
        select c.oid::regclass as name, p.names from pg_catalog.pg_class c cross join lateral (
            -- A bound role may be called so, too: its own policy lets nobody read.
            select coalesce(array_agg(p.polname order by p.polname), '{}') as names from pg_catalog.pg_policy p
             where p.polrelid = c.oid and p.polname ^@ 'read_by_' and v_role = any (p.polroles)
               and pg_get_expr(p.polqual, p.polrelid) is distinct from 'false') p
         where c.relnamespace = v_schema::regnamespace and c.relrowsecurity and not c.relispartition
    loop
        if v_reads and v_what.names = '{}' then
            v_policy := 'read_by_' || v_role;
            -- It may be that of another role, which had this number when a dump was made.
            while exists (select from pg_catalog.pg_policy p where p.polrelid = v_what.name and p.polname = v_policy) loop
                v_policy := v_policy || '_';
            end loop;
            execute format('create policy %I on %s for select to %I using (true)', v_policy, v_what.name, p_role);
        end if;
        foreach v_policy in array v_what.names[case when v_reads then 2 else 1 end:] loop
            execute format('drop policy %I on %s', v_policy, v_what.name);
        end loop;
    end loop;
end
$$;
revoke execute on function pgonce._apply_grants(name) from public;
