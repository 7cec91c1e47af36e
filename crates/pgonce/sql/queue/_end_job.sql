-- pgonce._end_job(p_job, p_status, p_code, p_message): ends one job that did not succeed.
-- locks    the job's row, which the caller has locked
-- writes   its row of pgonce.job_end instead of that of pgonce.job_live; the turn of the next job of its key
create or replace function pgonce._end_job(p_job pgonce.job_live, p_status pgonce.job_end_status, p_code text, p_message text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgonce.job_live l where l.tenant = p_job.tenant and l.id = p_job.id;
    insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue, owner, failure_code, failure_message)
    values (p_job.id, pgonce.now(),
        -- A dead letter needs manual action: it is kept until somebody decides.
        case p_status when 'dead' then null else pgonce.now() + (pgonce._job_rules(p_job.queue)).keep end,
        p_status, p_job.attempts, p_job.tenant, p_job.queue, p_job.owner, left(p_code, 255), left(p_message, 4000));
    if p_job.key is not null then
        perform pgonce._free_key(p_job.tenant, p_job.queue, p_job.key);
    end if;
end
$$;
