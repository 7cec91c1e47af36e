-- pgonce._is_granted(p_role): has this role itself been let in, by pgonce.grant_to?
-- answers  false for a role of a name that pgonce.role_grant knows from a dropped one: what a dropped role had goes with it
create or replace function pgonce._is_granted(p_role name)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        cross join aclexplode(n.nspacl) a join pg_catalog.pg_roles r on r.oid = a.grantee
        where c.oid = 'pgonce.intent'::regclass and r.rolname = p_role collate "C")
$$;
