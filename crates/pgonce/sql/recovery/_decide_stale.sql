-- pgonce._decide_stale(p_scope, p_key, p_fence, p_probe, p_found, p_answer, p_ref_type, p_ref_id, p_why, p_tenant, p_person): what becomes
--          of an intent that pgonce._take_stale took, by its contract and what its probe (p_probe) found: p_found true, an effect
--          with its answer and reference; false, none; null, not known, because of p_why.
-- answers  succeeded; released, the next claim does it; abandoned; needs_manual_action; unknown, it is asked again later
-- locks    the intent's row
-- writes   the row; a row of pgonce.operator_act for each decision; for what is released, a job where the contract has a queue
-- raises   P4012 another attempt holds the intent; P4040 the answer is too large
-- note     a reference of more than 1000 bytes is left out. A contract whose probe has changed since decides nothing: what was not asked is not known
create or replace function pgonce._decide_stale(p_scope text, p_key text, p_fence bigint, p_probe text, p_found boolean,
    p_answer jsonb, p_ref_type text, p_ref_id text, p_why text, p_tenant text, p_person text)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row      pgonce.intent;
    v_contract pgonce.scope;
    v_now      timestamptz;
    v_decision text;
    v_why      text := p_why;
    v_name     text;
begin
    perform pgonce._force_durable_commit();
    select i.* into v_row from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for update;
    if not found or v_row.fence <> p_fence or v_row.status <> 'processing' then
        raise exception 'fence % does not hold the intent', p_fence using errcode = 'P4012',
            detail = format('scope %s: an operator or another attempt was faster.', p_scope),
            hint = 'Nothing has to be done.';
    end if;
    if octet_length(p_ref_id) > 1000 then
        -- As pgonce.succeed does: that it happened is what counts.
        v_why := coalesce(v_why, p_probe || ' found an effect; its reference of ' || octet_length(p_ref_id) || ' bytes is too long to keep');
        p_ref_type := null;
        p_ref_id := null;
    end if;
    v_contract := pgonce._contract_of(p_tenant, p_scope, true);
    v_now := pgonce.now();
    if v_contract.probe is distinct from p_probe collate "C" then
        v_decision := 'unknown';
        v_why := 'the probe of the contract has changed';
    else
        v_decision := case
            when p_found is null then 'unknown'
            when p_found then 'succeeded'
            when v_contract.stale = 'takeover' then 'released'
            when v_contract.stale = 'refuse' then 'abandoned'
            else 'needs_manual_action'
        end;
    end if;
    v_why := coalesce(v_why, case
        when p_found then p_probe || ' found ' || coalesce(p_ref_type || '/', '') || coalesce(p_ref_id, 'the effect')
        when p_probe is null then 'its holder vanished, and its contract has no probe'
        else 'its holder vanished, and ' || p_probe || ' found no effect' end);
    if v_decision in ('unknown', 'needs_manual_action') then
        update pgonce.intent i
           set lease_until = v_now, last_at = v_now, failure_message = left(v_why, 4000),
               failure_code = case v_decision when 'unknown' then 'probe_failed' else v_decision end
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    elsif v_decision = 'succeeded' then
        update pgonce.intent i
           set status = 'succeeded', lease_until = null, last_at = v_now,
               expires_at = v_now + pgonce._retention_for(v_contract, null),
               answer = pgonce._answer_to_keep(v_contract, p_scope, p_answer, p_tenant, false),
               ref_type = case when v_contract.storage in ('answer', 'reference') then p_ref_type end,
               ref_id = case when v_contract.storage in ('answer', 'reference') then p_ref_id end
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    elsif v_decision = 'abandoned' then
        update pgonce.intent i
           set status = 'failed_final', lease_until = null, last_at = v_now,
               expires_at = v_now + pgonce._retention_for(v_contract, null), failure_code = 'abandoned',
               failure_message = case when p_probe is null
                   then 'the holder vanished; whether its effect happened is not known' else left(v_why, 4000) end
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    else
        update pgonce.intent i
           set status = 'failed_retryable', lease_until = null, last_at = v_now, failure_code = 'released',
               failure_message = left(v_why, 4000),
               -- Only a probe has found out that there is no effect.
               vanished_at = case when p_probe is null then i.vanished_at end
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
        if v_contract.retry_queue is not null and v_row.attempts < v_contract.max_attempts then
            v_name := encode(sha256(convert_to(format('%s:%s,%s', octet_length(p_scope), p_scope, p_key), 'UTF8')), 'hex');
            perform pgonce.enqueue(v_contract.retry_queue, jsonb_build_object('scope', p_scope, 'key', p_key, 'tenant', p_tenant,
                    'attempts', v_row.attempts, 'correlation_id', v_row.correlation_id),
                p_unique_key => v_name || '-' || p_fence, p_key => v_name, p_tenant => p_tenant);
            v_why := v_why || '; a job is in queue ' || v_contract.retry_queue;
        elsif v_contract.retry_queue is not null then
            v_why := v_why || '; no job: it had ' || v_row.attempts || ' attempts';
        end if;
    end if;
    if v_decision <> 'unknown' then
        perform pgonce._audit_act('recover', p_scope, p_key, v_decision || ': ' || v_why, to_jsonb(v_row) - '{answer,tenant,scope,key}'::text[],
            p_tenant, p_person);
    end if;
    return v_decision;
end
$$;
