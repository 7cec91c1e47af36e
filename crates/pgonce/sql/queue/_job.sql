-- pgonce._job(p_tenant, p_id): what became of a job, for a caller who knows its number.
-- answers  its row of pgonce.jobs without its keys; no row: there is no such job, or it is no longer kept
-- note     with the owner's rights: the view itself shows the keys and results of every job, to operators only. Where
--          tenants are isolated, the rows of the session's own
create or replace function pgonce._job(p_tenant text, p_id bigint)
returns table (status text, attempts integer, failure_code text, failure_message text, progress jsonb, result jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select j.status, j.attempts, j.failure_code, j.failure_message, j.progress, j.result
          from pgonce.jobs j where j.tenant = p_tenant collate "C" and j.id = p_id;
end
$$;
