-- 0015_shared: what all tenants share, where tenants are isolated: the rate and the running jobs of a queue, the rules of state machines, and
-- how far a consumer is for all of them.
-- breaking: no

-- What limits count, of all tenants. PostgreSQL applies the policies of the table that a query names: this one shows what those of
-- pgonce.job_live hide, to pgonce._queue_room and pgonce.renew_jobs, which answer no row of it. Nothing on it is granted to anyone. Its columns are the first
-- ones of pgonce.job_live, so that a restored dump has the same rows.
create table pgonce.job_running (
    id       bigint,
    due_at   timestamptz,
    fence    bigint,
    state    pgonce.job_state,
    attempts integer,
    priority smallint,
    tenant   text collate "C",
    queue    text collate "C",
    constraint jobs_are_in_job_live check (false) no inherit
);
-- A claim scans no table: where that is forbidden, the plan of one that cannot be avoided looks dear enough to be compiled.
create index no_jobs_limited on pgonce.job_running (queue) where state = 'limited';
do $$
declare
    v_distributed boolean := false;
    v_policy      name;
    v_table       regclass;
begin
    if to_regclass('pg_catalog.pg_dist_partition') is not null then
        execute 'select exists (select from pg_dist_partition p where p.logicalrelid = ''pgonce.job_live''::regclass)' into v_distributed;
    end if;
    -- On Citus limits hold for each tenant.
    if not v_distributed then
        alter table pgonce.job_live inherit pgonce.job_running;
    end if;
    -- Its rows belong to no tenant, and every worker writes them.
    for v_policy in select p.polname from pg_policy p where p.polrelid = 'pgonce.job_bucket'::regclass loop
        execute format('drop policy %I on pgonce.job_bucket', v_policy);
    end loop;
    if (select c.relrowsecurity from pg_class c where c.oid = 'pgonce.job_bucket'::regclass) then
        alter table pgonce.job_bucket no force row level security;
        alter table pgonce.job_bucket disable row level security;
    end if;
    -- Rules are general, and so are cursors for all tenants: the one of a tenant goes on where they are.
    for v_table in
        select p.polrelid::regclass from pg_policy p
         where p.polrelid in ('pgonce.transition_rule'::regclass, 'pgonce.inbox_cursor'::regclass) and p.polname = 'own_tenant'
    loop
        execute format('alter policy own_tenant on %s using (tenant = '''' or pgonce._tenant_is_allowed(tenant))', v_table);
    end loop;
end $$;
