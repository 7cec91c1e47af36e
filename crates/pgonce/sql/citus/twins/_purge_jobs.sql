-- pgonce._purge_jobs on Citus: as queue/_purge_jobs.sql, tenant by tenant, each on its server.
-- note     it finds tenants by reading every shard
create or replace function pgonce._purge_jobs(p_limit integer)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now    timestamptz := pgonce.now();
    v_tenant text;
    v_done   bigint := 0;
    v_count  bigint;
begin
    for v_tenant in select e.tenant::text from pgonce.job_end e where e.expires_at <= v_now group by e.tenant limit 100 loop
        exit when v_done >= p_limit;
        select n into v_count from pgonce._purge_tenant_jobs((p_limit - v_done)::integer, v_tenant) n;
        v_done := v_done + v_count;
    end loop;
    return v_done;
end
$$;
