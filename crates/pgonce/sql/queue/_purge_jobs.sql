-- pgonce._purge_jobs(p_limit): removes ended jobs whose retention is over, at most p_limit. Dead letters stay.
-- answers  how many
-- locks    the rows it removes, and none that is locked
create or replace function pgonce._purge_jobs(p_limit integer)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    with gone as (
        delete from pgonce.job_end e
         where e.ctid = any (array(select x.ctid from pgonce.job_end x where x.expires_at <= pgonce.now()
               order by x.expires_at limit p_limit for update skip locked))
        returning e.tenant, e.id
    ), jobs as (
        delete from pgonce.job j using gone g where j.tenant = g.tenant and j.id = g.id
    )
    select count(*) into v_count from gone;
    return v_count;
end
$$;
