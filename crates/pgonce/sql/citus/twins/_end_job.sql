-- pgonce._end_job on Citus: as queue/_end_job.sql; what a statement needs is computed before it.
-- writes   of an event that is given up, in the queue of a subscription, only that it is tried no more: it stays, and holds back later
--          ones of its subject. One that is skipped is kept for 30 days
create or replace function pgonce._end_job(p_job pgonce.job_live, p_status pgonce.job_end_status, p_code text, p_message text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant  text collate "default" := p_job.tenant;
    v_now     timestamptz := pgonce.now();
    -- A dead letter needs manual action: it is kept until somebody decides.
    v_expires timestamptz := case when p_job.queue ^@ 'outbox/' then v_now + interval '30 days'
        when p_status <> 'dead' then v_now + (pgonce._job_rules(p_job.queue)).keep end;
    v_code    text := left(p_code, 255);
    v_message text := left(p_message, 4000);
    v_dead    jsonb := jsonb_build_object('dead_at', v_now);
begin
    if p_status = 'dead' and p_job.queue ^@ 'outbox/' then
        update pgonce.job_live l
           set state = 'retrying', due_at = null, owner = null, failure_code = v_code, failure_message = v_message, progress = v_dead
         where l.tenant = v_tenant and l.id = p_job.id;
        return;
    end if;
    delete from pgonce.job_live l where l.tenant = v_tenant and l.id = p_job.id;
    insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue, owner, failure_code, failure_message)
    values (p_job.id, v_now, v_expires, p_status, p_job.attempts, v_tenant, p_job.queue, p_job.owner, v_code, v_message);
    if p_job.key is not null then
        perform pgonce._free_key(v_tenant, p_job.queue, p_job.key);
    end if;
end
$$;
