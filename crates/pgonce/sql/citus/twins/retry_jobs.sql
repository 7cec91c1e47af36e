-- pgonce.retry_jobs on Citus: as queue/retry_jobs.sql, tenant by tenant, each on its server.
-- writes   ready; acts of operators are not recorded on Citus
-- note     without a tenant it reads every shard to find them
create or replace function pgonce.retry_jobs(p_queue text, p_id bigint default null, p_reason text default null,
    p_tenant text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   text collate "C" := p_queue;
    v_tenant  text;
    v_tenants text[] := array[p_tenant];
    v_count   bigint;
    v_all     bigint := 0;
begin
    if p_tenant is null then
        v_tenants := '{}';
        for v_tenant in
            select w.tenant::text from (
                select e.tenant from pgonce.job_end e where e.queue = v_queue and e.status = 'dead' and (p_id is null or e.id = p_id)
                union all
                select l.tenant from pgonce.job_live l
                 where l.queue = v_queue and (l.id = p_id or p_id is null and l.state = 'retrying' and l.due_at is null)) w
             group by w.tenant
        loop
            v_tenants := v_tenants || v_tenant;
        end loop;
    end if;
    foreach v_tenant in array v_tenants loop
        select n into v_count from pgonce._retry_tenant_jobs(p_queue, p_id, v_tenant) n;
        v_all := v_all + v_count;
    end loop;
    return v_all;
end
$$;
