-- pgonce._audit_job(p_act, p_tenant, p_queue, p_id, p_reason, p_before): records who did what to a job.
-- writes   a row of pgonce.operator_act, whose scope is "job " and the queue, and whose key is the job's number
create or replace function pgonce._audit_job(p_act text, p_tenant text, p_queue text, p_id bigint, p_reason text, p_before jsonb)
returns void
language sql volatile
begin atomic
    insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
    values (pgonce.now(), session_user, p_act, p_tenant, 'job ' || p_queue, p_id::text, coalesce(p_reason, ''), false, p_before);
end;
