-- pgonce.finish_jobs on Citus: as queue/finish_jobs.sql, tenant by tenant, each on its server.
-- note     jobs of several servers commit in two phases, as Citus does it
create or replace function pgonce.finish_jobs(p_jobs jsonb)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_part  record;
    v_count integer;
    v_all   integer := 0;
begin
    for v_part in
        select coalesce(j ->> 'tenant', '') as tenant, jsonb_agg(j) as jobs from jsonb_array_elements(p_jobs) j group by 1 order by 1
    loop
        select n into v_count from pgonce._finish_tenant_jobs(v_part.jobs, v_part.tenant) n;
        v_all := v_all + v_count;
    end loop;
    return v_all;
end
$$;
