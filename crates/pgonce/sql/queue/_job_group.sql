-- pgonce._job_group(p_tenant, p_name): how far a group of jobs is, for a caller who knows its name.
-- answers  its row of pgonce.job_groups; no row: no job of it is known
-- note     with the owner's rights: the view itself names the groups of every tenant, to operators and viewers only
create or replace function pgonce._job_group(p_tenant text, p_name text)
returns table (status text, jobs bigint, live bigint, succeeded bigint, dead bigint, cancelled bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select g.status, g.jobs, g.live, g.succeeded, g.dead, g.cancelled
          from pgonce.job_groups g where g.tenant = p_tenant collate "C" and g.group_name = p_name collate "C";
end
$$;
