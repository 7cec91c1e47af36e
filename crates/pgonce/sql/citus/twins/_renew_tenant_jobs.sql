-- pgonce._renew_tenant_jobs(p_jobs, p_lease, p_tenant): on Citus, what pgonce.renew_jobs does for one tenant, delegated to the server that
--          has its rows.
-- answers  the jobs that are still held
-- locks    their rows, and none that is locked
-- writes   as pgonce.renew_jobs
create or replace function pgonce._renew_tenant_jobs(p_jobs jsonb, p_lease interval, p_tenant text)
returns table (id bigint, fence bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_given record;
    v_job   pgonce.job_live;
    v_due   timestamptz := case when p_lease > interval '0' then pgonce.now() + p_lease end;
begin
    for v_given in
        select c.id, c.fence, c.progress, c.started
          from jsonb_to_recordset(p_jobs) as c (id bigint, fence bigint, progress jsonb, started boolean) order by c.id
    loop
        -- Without waiting: one that is locked is being finished, by its own worker or not.
        select l.* into v_job from pgonce.job_live l
         where l.tenant = p_tenant and l.id = v_given.id and l.fence = v_given.fence and l.state in ('running', 'limited')
           for update skip locked;
        if found then
            v_job.progress := coalesce(v_given.progress, v_job.progress);
            if v_due is null then
                v_job.state := 'ready';
                v_job.attempts := greatest(v_job.attempts - 1, coalesce(v_given.started, false)::integer);
            elsif v_job.state = 'running' and (pgonce._job_rules(v_job.queue)).max_running is not null then
                -- pgonce.define_queue did not see it: the transaction that claimed it was open.
                v_job.state := 'limited';
            end if;
            update pgonce.job_live l
               set due_at = v_due, state = v_job.state, attempts = v_job.attempts, progress = v_job.progress
             where l.tenant = p_tenant and l.id = v_given.id;
            continue when v_due is null;
        else
            perform 1 from pgonce.job_live l
              where l.tenant = p_tenant and l.id = v_given.id and l.fence = v_given.fence and l.state in ('running', 'limited');
            continue when not found;
        end if;
        return query select v_given.id, v_given.fence;
    end loop;
end
$$;
