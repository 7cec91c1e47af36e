-- pgonce._audit_job(p_act, p_tenant, p_queue, p_id, p_reason, p_before): records who did what to a job.
-- writes   a row of pgonce.operator_act, whose scope is "job " and the queue, and whose key is the job's number
create or replace function pgonce._audit_job(p_act text, p_tenant text, p_queue text, p_id bigint, p_reason text, p_before jsonb)
returns void
language sql volatile
return pgonce._audit_act(p_act, 'job ' || p_queue, p_id::text, p_reason, p_before, p_tenant);
