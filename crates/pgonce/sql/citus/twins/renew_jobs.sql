-- pgonce.renew_jobs on Citus: as queue/renew_jobs.sql, tenant by tenant, each on its server.
create or replace function pgonce.renew_jobs(p_jobs jsonb, p_lease interval)
returns table (tenant text, id bigint, fence bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_part record;
begin
    if (p_lease >= interval '0') is not true then
        raise exception 'a lease is not negative' using errcode = '22023', hint = 'For example interval ''30 seconds''.';
    end if;
    for v_part in
        select coalesce(j ->> 'tenant', '') as tenant, jsonb_agg(j) as jobs from jsonb_array_elements(p_jobs) j group by 1 order by 1
    loop
        return query select v_part.tenant, r.id, r.fence from pgonce._renew_tenant_jobs(v_part.jobs, p_lease, v_part.tenant) r;
    end loop;
end
$$;
