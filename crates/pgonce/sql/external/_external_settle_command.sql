-- pgonce._external_settle_command(p_call, p_outcome, p_answer, p_code, p_message, p_by): ends the command whose outcome is that
--          of this call, where nobody is at work on it.
-- locks    nothing: the caller holds the intent's row
-- writes   the intent, with a number that turns its old holder away; a row of pgonce.operator_act
-- note     a success without an answer, or with one that is too large, is left to the next attempt, which finds the call done. So is
--          a command that began the key anew and has not come to this step: it may be another request. One whose holder vanished does
--          not succeed where the contract gives it up: a claim may have answered that it was abandoned
create or replace function pgonce._external_settle_command(p_call pgonce.external_call, p_outcome pgonce.external_status,
    p_answer jsonb, p_code text, p_message text, p_by text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_row      pgonce.intent;
    v_contract pgonce.scope := pgonce._contract_of((p_call).tenant, (p_call).scope, true);
    v_now      timestamptz := pgonce.now();
begin
    select i.* into v_row from pgonce.intent i
     where i.tenant = (p_call).tenant and i.scope = (p_call).scope and i.key = (p_call).key;
    if (v_row.status = 'processing' and v_row.lease_until <= v_now or v_row.status = 'failed_retryable') is not true
       or (p_call).begun_at <> v_row.first_at or (p_call).ended_at is not null
       or p_outcome = 'confirmed' and (p_answer is null
            or v_contract.stale = 'refuse' and v_contract.probe is null and (v_row.status = 'processing' or v_row.vanished_at is not null)
            or v_contract.storage = 'answer' and octet_length(p_answer::text) > v_contract.max_answer) then
        return;
    end if;
    perform pgonce._audit_act('reconcile', v_row.scope, v_row.key, format('step %s is %s, by %s', (p_call).step, p_outcome, p_by),
        to_jsonb(v_row) - '{answer,tenant,scope,key}'::text[], v_row.tenant);
    update pgonce.intent i
       set status = case p_outcome when 'confirmed' then 'succeeded' else 'failed_final' end::pgonce.status,
           fence = pgonce._next_fence(v_row.fence, false, v_row.tenant), lease_until = null, last_at = v_now,
           expires_at = v_now + v_contract.retention, ref_type = null, ref_id = null,
           answer = case p_outcome when 'confirmed'
               then pgonce._answer_to_keep(v_contract, v_row.scope, p_answer, v_row.tenant, false) end,
           failure_code = case p_outcome when 'failed' then left(p_code, 255) end,
           failure_message = case p_outcome when 'failed' then left(coalesce(p_message, p_code), 4000) end
     where i.tenant = v_row.tenant and i.scope = v_row.scope and i.key = v_row.key;
end
$$;
