-- pgonce.external_record(p_scope, p_key, p_fence, p_step, p_outcome, p_reference, p_response, p_code, p_message, p_tenant,
--          p_send): records how a call that pgonce.external_send allowed ended.
-- answers  one row as pgonce.external_send does: done, failed, unknown, or wait (not_sent: send it again later); fenced: it is
--          recorded, and this fence does not hold the intent any more: stop. A report of the provider that came before the
--          answer may have decided more
-- locks    the reference, the intent's row and the step's; the provider's where it has a circuit breaker
-- writes   the step, and reports of the provider that waited for its reference
-- raises   P4012 this fence does not hold the intent, and has not sent this step, or has in an earlier life of the key; 55000 it
--          holds it, and has not sent this step; 22023 bad input; 25000 there is a reference, and the transaction is not READ
--          COMMITTED
-- note     p_outcome: confirmed; failed, where the provider said that it did not and will not happen; not_sent, where the
--          provider cannot have acted; unknown for everything else. A call that was sent before is not freed by not_sent. What a
--          provider said stays true after a takeover. Where the step was sent again since, or an operator said so, only
--          that it happened, or its reference: how the other try ends is not known from this one. p_send, as it was given to
--          pgonce.external_send, names the try, also among those under one fence
-- example  select fence from pgonce.claim('pay', 'order-2', '\x5e88', '30 seconds') \gset
--          select from pgonce.external_send('pay', 'order-2', :fence, 'charge', 'bank', '\x01');
--          select action from pgonce.external_record('pay', 'order-2', :fence, 'charge', 'confirmed', 'ch_7', '{"ok": true}');
drop function if exists pgonce.external_record(text, text, bigint, text, text, text, jsonb, text, text, text);
create or replace function pgonce.external_record(p_scope text, p_key text, p_fence bigint, p_step text, p_outcome text,
    p_reference text default null, p_response jsonb default null, p_code text default null, p_message text default null,
    p_tenant text default '', p_send uuid default null)
returns pgonce.external_step
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_call     pgonce.external_call;
    v_provider text collate "C";
    v_late     boolean := false;
begin
    if (p_outcome collate "C" in ('confirmed', 'failed', 'unknown', 'not_sent')) is not true
       or octet_length(p_reference) > 1000 then
        raise exception 'a call is confirmed, failed, unknown or not_sent, and has a reference of at most 1000 bytes'
            using errcode = '22023', hint = 'Where nobody knows what the provider did it is unknown.';
    end if;
    perform pgonce._force_durable_commit();
    select c.provider into v_provider from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
       and c.step = p_step collate "C";
    perform pgonce._external_lock(v_provider, p_reference, p_tenant);
    perform from pgonce.intent i
      where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for no key update;
    begin
        perform pgonce.guard(p_scope, p_key, p_fence, p_tenant);
    exception when sqlstate 'P4012' then
        v_late := true;
    end;
    select c.* into v_call from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
       and c.step = p_step collate "C" for update;
    if v_call.sent_at is null or p_fence is null or v_call.fence < p_fence or v_call.fence > p_fence and not v_late
       or p_fence < v_call.first_fence then
        perform pgonce.guard(p_scope, p_key, p_fence, p_tenant);
        raise exception 'this attempt has not sent step %', coalesce(quote_literal(p_step), 'null') using errcode = '55000',
            detail = format('scope %s, fence %s.', p_scope, p_fence), hint = 'Call pgonce.external_send first.';
    end if;
    if p_reference is not null and p_outcome collate "C" = 'unknown' then
        -- Also where a report was faster: later ones may know it by its reference alone. With two references it may have happened twice.
        update pgonce.external_call c
           set reference = coalesce(c.reference, p_reference), disputed = case when c.reference is not null
               then left(format('unknown, reference %s before %s, by response', c.reference, p_reference), 3000) else c.disputed end
         where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key and c.reference is distinct from p_reference collate "C";
    end if;
    if p_outcome collate "C" <> 'confirmed' and (v_call.fence > p_fence or v_late and v_call.status = 'requested'
       or v_call.status in ('requested', 'sent') and v_call.send_id is distinct from coalesce(p_send, v_call.send_id)) then
        null;
    elsif p_outcome in ('confirmed', 'failed') then
        perform pgonce._external_decide(v_call, p_outcome::pgonce.external_status, p_reference, p_response, null, p_code,
            p_message, 'response');
    elsif p_outcome = 'unknown' then
        update pgonce.external_call c
           set status = 'unknown', reference = coalesce(p_reference, c.reference), failure_code = left(p_code, 255),
               failure_message = left(p_message, 4000), response = coalesce(p_response, c.response)
         where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key and c.status in ('sent', 'unknown');
    else
        -- Only this try did not reach the provider; one before it may have.
        update pgonce.external_call c
           set status = case when c.sends > 1 then 'unknown' else 'requested' end::pgonce.external_status,
               sends = c.sends - 1, send_id = null, failure_code = left(p_code, 255), failure_message = left(p_message, 4000),
               first_sent_at = case when c.sends > 1 then c.first_sent_at end,
               deadline_at = case when c.sends > 1 then c.deadline_at end,
               expires_at = case when c.sends <= 1
                   then pgonce.now() + coalesce((pgonce._external_rules(c.provider)).keys_for, interval '0') end,
               late_looks = case when c.sends > 1 then c.late_looks else 0 end,
               next_look_at = case when c.sends > 1 then c.next_look_at end
         where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key and c.status = 'sent';
    end if;
    v_call := pgonce._external_join(v_call.tenant, v_call.effect_key);
    -- "Accepted, the result comes later" is an answer.
    perform pgonce._external_health(v_call.provider, p_outcome in ('confirmed', 'failed') or p_reference is not null);
    if v_late then
        return pgonce._external_step('fenced', v_call);
    elsif v_call.status = 'requested' then
        return pgonce._external_step('wait', v_call, interval '1 second');
    end if;
    return pgonce._external_step(null, v_call);
end
$$;
