-- pgonce._purge_tenant_jobs(p_limit, p_tenant): on Citus, what pgonce._purge_jobs does for one tenant, delegated to the server that has
--          its rows.
-- answers  how many
-- locks    the rows it removes, and none that is locked
create or replace function pgonce._purge_tenant_jobs(p_limit integer, p_tenant text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgonce.now();
    v_id  bigint;
    v_ids bigint[] := '{}';
begin
    for v_id in
        select e.id from pgonce.job_end e where e.tenant = p_tenant and e.expires_at <= v_now
         order by e.expires_at limit p_limit for update skip locked
    loop
        v_ids := v_ids || v_id;
    end loop;
    delete from pgonce.job_end e where e.tenant = p_tenant and e.id = any (v_ids);
    delete from pgonce.job j where j.tenant = p_tenant and j.id = any (v_ids);
    return cardinality(v_ids);
end
$$;
