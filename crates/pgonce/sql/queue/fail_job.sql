-- pgonce.fail_job(p_id, p_fence, p_retryable, p_code, p_message, p_delay, p_tenant): records that a job failed. Call it in a
--          transaction of its own: the one that failed is rolled back.
-- answers  retrying: it is tried again after p_delay (at most 5000 years), or after a pause that doubles, with jitter; dead: it needs
--          manual action, since it failed permanently or as often as its queue allows
-- locks    the job's row
-- writes   its state and why; a dead letter frees its key
-- raises   P4012 another worker has it, or it was cancelled
-- example  select from pgonce.enqueue('mail', '{"to": "bob"}');
--          select id, fence from pgonce.claim_jobs('{mail}', 'host-7', '30 seconds', 1) \gset
--          select pgonce.fail_job(:id, :fence, true, 'smtp', 'no route');
create or replace function pgonce.fail_job(p_id bigint, p_fence bigint, p_retryable boolean, p_code text, p_message text,
    p_delay interval default null, p_tenant text default '')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job   pgonce.job_live;
    v_rules pgonce.job_queue;
    v_pause interval;
begin
    perform pgonce._force_durable_commit();
    select l.* into v_job from pgonce.job_live l
     where l.tenant = p_tenant collate "C" and l.id = p_id and l.fence = p_fence and l.state in ('running', 'limited')
       for update;
    if not found then
        raise exception 'fence % does not hold job %', p_fence, p_id
            using errcode = 'P4012', hint = 'Let it be: another worker has it, or has done it, or it was cancelled.';
    end if;
    v_rules := pgonce._job_rules(v_job.queue);
    if p_retryable is not true or v_job.attempts >= v_rules.max_attempts then
        perform pgonce._end_job(v_job, 'dead', p_code, p_message);
        return 'dead';
    end if;
    v_pause := pgonce._backoff(v_rules.backoff, v_rules.max_backoff, v_job.attempts);
    update pgonce.job_live l
       set state = 'retrying', owner = null,
           due_at = pgonce.now() + greatest(least(coalesce(p_delay, v_pause), interval '5000 years'), interval '0'),
           failure_code = left(p_code, 255), failure_message = left(p_message, 4000)
     where l.tenant = p_tenant collate "C" and l.id = p_id;
    return 'retrying';
end
$$;
