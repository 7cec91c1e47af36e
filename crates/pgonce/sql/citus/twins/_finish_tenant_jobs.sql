-- pgonce._finish_tenant_jobs(p_jobs, p_tenant): on Citus, what pgonce.finish_jobs does for one tenant, delegated to the server that has
--          its rows.
-- answers  how many
-- locks    their rows
-- writes   as pgonce.finish_jobs
-- raises   P4012 another worker has one of them, or it was cancelled
create or replace function pgonce._finish_tenant_jobs(p_jobs jsonb, p_tenant text)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_given   record;
    v_job     pgonce.job_live;
    v_keep    interval;
    v_now     timestamptz;
    v_expires timestamptz;
    v_count   integer := 0;
    v_queues  text[] := '{}';
    v_keys    text[] := '{}';
begin
    perform pgonce._force_durable_commit();
    v_now := pgonce.now();
    for v_given in
        select c.id, c.fence, c.result from jsonb_to_recordset(p_jobs) as c (id bigint, fence bigint, result jsonb) order by c.id
    loop
        delete from pgonce.job_live l
         where l.tenant = p_tenant and l.id = v_given.id and l.fence = v_given.fence and l.state in ('running', 'limited')
        returning l.* into v_job;
        continue when not found;
        v_count := v_count + 1;
        v_keep := (pgonce._job_rules(v_job.queue)).keep;
        if v_keep > interval '0' then
            v_expires := v_now + v_keep;
            insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue, owner, result)
            values (v_job.id, v_now, v_expires, 'succeeded', v_job.attempts, p_tenant, v_job.queue, v_job.owner, v_given.result);
        else
            delete from pgonce.job j where j.tenant = p_tenant and j.id = v_job.id;
        end if;
        if v_job.key is not null then
            v_queues := v_queues || v_job.queue::text;
            v_keys := v_keys || v_job.key::text;
        end if;
    end loop;
    if v_count is distinct from jsonb_array_length(p_jobs) then
        raise exception '% of % jobs are not held with these fences', jsonb_array_length(p_jobs) - v_count, jsonb_array_length(p_jobs)
            using errcode = 'P4012', hint = 'Roll back: another worker has them, or has done them, or they were cancelled.';
    end if;
    for v_given in select distinct k.queue, k.key from unnest(v_queues, v_keys) k (queue, key) loop
        perform pgonce._free_key(p_tenant, v_given.queue, v_given.key);
    end loop;
    return v_count;
end
$$;
