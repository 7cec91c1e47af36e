-- pgonce.fail_job on Citus: as queue/fail_job.sql, delegated.
create or replace function pgonce.fail_job(p_id bigint, p_fence bigint, p_retryable boolean, p_code text, p_message text,
    p_delay interval default null, p_tenant text default '')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job     pgonce.job_live;
    v_rules   pgonce.job_queue;
    v_pause   interval;
    v_due     timestamptz;
    v_code    text := left(p_code, 255);
    v_message text := left(p_message, 4000);
begin
    perform pgonce._force_durable_commit();
    select l.* into v_job from pgonce.job_live l
     where l.tenant = p_tenant and l.id = p_id and l.fence = p_fence and l.state in ('running', 'limited') for update;
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
    v_due := pgonce.now() + greatest(least(coalesce(p_delay, v_pause), interval '5000 years'), interval '0');
    update pgonce.job_live l
       set state = 'retrying', due_at = v_due, owner = null, failure_code = v_code, failure_message = v_message
     where l.tenant = p_tenant and l.id = p_id;
    return 'retrying';
end
$$;
