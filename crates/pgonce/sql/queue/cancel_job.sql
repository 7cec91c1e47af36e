-- pgonce.cancel_job(p_id, p_reason, p_tenant): ends a job that is not done. One that runs is taken from its worker, whose
--          transaction cannot commit any more. A dead letter is put away.
-- answers  whether it was cancelled; false: it is done, cancelled, or unknown
-- locks    the job's row
-- writes   its row of pgonce.job_end, and one of pgonce.operator_act
-- raises   nothing
-- example  select pgonce.cancel_job(7, 'the order is void');
create or replace function pgonce.cancel_job(p_id bigint, p_reason text default null, p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job pgonce.job_live;
    v_end pgonce.job_end;
begin
    perform pgonce._force_durable_commit();
    select l.* into v_job from pgonce.job_live l where l.tenant = p_tenant collate "C" and l.id = p_id for update;
    if found then
        perform pgonce._end_job(v_job, 'cancelled', 'cancelled', p_reason);
        perform pgonce._audit_job('cancel', p_tenant, v_job.queue, p_id, p_reason, to_jsonb(v_job));
        return true;
    end if;
    select e.* into v_end from pgonce.job_end e
     where e.tenant = p_tenant collate "C" and e.id = p_id and e.status = 'dead' for update;
    if not found then
        return false;
    end if;
    update pgonce.job_end e set status = 'cancelled', expires_at = pgonce.now() + (pgonce._job_rules(v_end.queue)).keep
     where e.tenant = p_tenant collate "C" and e.id = p_id;
    perform pgonce._audit_job('cancel', p_tenant, v_end.queue, p_id, p_reason, to_jsonb(v_end) - 'result');
    return true;
end
$$;
