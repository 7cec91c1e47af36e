-- pgonce.isolate_tenants(p_on): turns row level security by tenant on or off, for roles that pgonce.bind_tenant has bound.
--          Owner only.
-- answers  nothing
-- locks    each table with tenants, exclusively, for a moment
-- writes   the functions pgonce._tenant_is_allowed of the policies and pgonce._scope_is_allowed of claims, and whether the policies hold for the owner's functions too;
--          policies for those who may read all; a row of pgonce.operator_act. Nothing where it is so already
-- raises   22023 p_on is null; 42501 something in the schema belongs to a superuser or to a role that bypasses row level security:
--          it would show every tenant to everyone
-- note     a dump by the owner then needs pg_dump --enable-row-security, or a superuser. Where the tables get another owner, call it again:
--          the policies are for the role that owned them
-- example  select pgonce.isolate_tenants(false);
create or replace function pgonce.isolate_tenants(p_on boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_schema oid;
    v_owner  name;
    v_above  record;
    v_table  record;
    v_was    boolean := (select c.relforcerowsecurity from pg_catalog.pg_class c where c.oid = 'pgonce.intent'::regclass);
begin
    select c.relnamespace, pg_get_userbyid(c.relowner) into v_schema, v_owner from pg_catalog.pg_class c
     where c.oid = 'pgonce.intent'::regclass;
    if p_on is null then
        raise exception 'isolation is on or off, not null' using errcode = '22023',
            hint = 'For example: select pgonce.isolate_tenants(true).';
    elsif p_on then
        -- Each of them by itself: somebody may have given away one function.
        select o.name, r.rolname into v_above
          from (select c.oid::regclass::text, c.relowner from pg_catalog.pg_class c where c.relnamespace = v_schema
                union all
                select p.oid::regprocedure::text, p.proowner from pg_catalog.pg_proc p where p.pronamespace = v_schema) as o (name, owner)
          join pg_catalog.pg_roles r on r.oid = o.owner
         where r.rolsuper or r.rolbypassrls order by 1 limit 1;
        if found then
            raise exception '% belongs to "%", which bypasses row level security', v_above.name, v_above.rolname using errcode = '42501',
                hint = 'Let an ordinary role own all that is in the schema; pgonce doctor says what belongs to others.';
        end if;
    end if;
    execute 'create or replace function pgonce._tenant_is_allowed(p_tenant text) returns boolean '
        'language sql stable parallel safe return '
        || case when p_on then 'coalesce(p_tenant = (select pgonce._session_tenant()) collate "C", true)' else 'true' end;
    for v_table in
        select c.oid::regclass as name, c.relrowsecurity as policed, c.relforcerowsecurity as forced,
               c.relname in ('inbox_contract', 'inbox_cursor', 'projection', 'projection_build', 'sweep', 'job_queue', 'region_rule', 'transition_rule') as general,
               (select p.polroles from pg_catalog.pg_policy p where p.polrelid = c.oid and p.polname = 'of_the_owner') as owners,
               c.relowner as owner
          from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
         where c.relnamespace = v_schema
           and c.relkind in ('r', 'p') and not c.relispartition
           -- What a queue may start is shared by all tenants: only functions that answer none of it read or write it.
           and c.relname not in ('tenant_binding', 'job_bucket', 'job_running')
    loop
        if v_table.owners <> array[v_table.owner] then
            -- The tables got another owner.
            execute format('alter policy of_the_owner on %s to %I', v_table.name, v_owner);
        end if;
        if p_on and v_table.owners is null then
            -- What the functions may do; the restrictive policy own_tenant narrows it.
            execute format('create policy of_the_owner on %s to %I using (true)', v_table.name, v_owner);
        end if;
        if p_on and not v_table.policed then
            -- What is general belongs to the empty tenant, and everyone reads it.
            execute format('create policy own_tenant on %s as restrictive using (%s pgonce._tenant_is_allowed(tenant)) '
                'with check (pgonce._tenant_is_allowed(tenant))', v_table.name,
                case when v_table.general then 'tenant = '''' or' else '' end);
            execute format('alter table %s enable row level security', v_table.name);
        end if;
        if v_table.forced <> p_on then
            execute format('alter table %s %s row level security', v_table.name, case when p_on then 'force' else 'no force' end);
        end if;
    end loop;
    perform pgonce._set_claim_switch();
    perform pgonce._audit_rules('tenants', jsonb_build_object('isolated', v_was), jsonb_build_object('isolated', p_on));
    -- Who may read all needs a policy for that on each table which has got its own.
    perform pgonce._apply_grants(r.rolname) from pg_catalog.pg_roles r
      where p_on and exists (select from pgonce.role_grant g where g.role = r.rolname collate "C" and g.part = 'operator');
end
$$;
revoke execute on function pgonce.isolate_tenants(boolean) from public;
