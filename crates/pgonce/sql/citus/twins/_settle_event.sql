-- pgonce._settle_event(p_id, p_fence, p_what, p_reason, p_after, p_tenant): on Citus, records that a relay could not deliver an event,
--          delegated to the server that has the tenant's rows.
-- answers  retrying, or dead
-- locks    the row of the event's job
-- writes   for p_what
--            defer  nobody knows yet whose fault it is: tried again later, and no attempt is counted
--            retry  tried again after a growing pause with jitter, at least p_after; given up after the subscription's max_attempts
--            dead   given up
-- raises   P4012 another relay has it, or it was skipped
create or replace function pgonce._settle_event(p_id bigint, p_fence bigint, p_what text, p_reason text, p_after interval, p_tenant text)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job    pgonce.job_live;
    v_rules  pgonce.job_queue;
    v_due    timestamptz;
    v_reason text := left(p_reason, 4000);
begin
    perform pgonce._force_durable_commit();
    select l.* into v_job from pgonce.job_live l
     where l.tenant = p_tenant and l.id = p_id and l.fence = p_fence and l.state in ('running', 'limited') for update;
    if not found then
        raise exception 'fence % does not hold event %', p_fence, p_id
            using errcode = 'P4012', hint = 'Let it be: another relay has it, or has delivered it, or it was skipped.';
    end if;
    v_rules := pgonce._job_rules(v_job.queue);
    if p_what = 'dead' or p_what = 'retry' and v_job.attempts >= v_rules.max_attempts then
        perform pgonce._end_job(v_job, 'dead', p_what, p_reason);
        return 'dead';
    end if;
    if p_what = 'defer' then
        v_job.attempts := v_job.attempts - 1;
    end if;
    v_due := pgonce.now() + greatest(p_after, pgonce._backoff(v_rules.backoff, v_rules.max_backoff, v_job.attempts));
    update pgonce.job_live l
       set state = 'retrying', due_at = v_due, owner = null, attempts = v_job.attempts, failure_code = p_what, failure_message = v_reason
     where l.tenant = p_tenant and l.id = p_id;
    return 'retrying';
end
$$;
