-- pgonce.external_settle(p_effect_key, p_outcome, p_reason, p_force, p_reference, p_response, p_answer, p_code, p_message,
--          p_tenant, p_person, p_before): an operator's decision about a call. confirmed: it happened; failed: it did not and will not;
--          resend: it did not, and the next attempt sends it.
-- answers  the status before
-- locks    the reference, the intent's row and the call's
-- writes   the call; where its outcome is that of the command, the command, with p_answer; a row of pgonce.operator_act
-- raises   22023 an unknown outcome or no reason; 42704 there is no such call; 55000 it could open a second effect (its sender
--          is alive, it may have happened, or it was decided otherwise) and p_force is not set, or it is to be sent again, and the
--          retention of its command is over, or columns of pgonce.external_call have other values now than in p_before, such as
--          {"status": "unknown", "sends": 1}; 25000 there is a reference, and the transaction is not READ COMMITTED
-- note     a call of a command whose retention is over stays one: the next life of the key makes its own. p_before keeps a decision
--          to what was seen: a report may have confirmed the call since, which a resend by force would do a second time.
--          needs_operator is no status of the table: such a call is sent or unknown there
-- example  select fence from pgonce.claim('pay', 'order-3', '\x5e88', '30 seconds') \gset
--          select effect_key from pgonce.external_send('pay', 'order-3', :fence, 'charge', 'bank', '\x01') \gset
--          select pgonce.external_settle(:'effect_key', 'confirmed', 'ticket 9: on the statement', p_force => true);
drop function if exists pgonce.external_settle(uuid, text, text, boolean, text, jsonb, jsonb, text, text, text, text);
create or replace function pgonce.external_settle(p_effect_key uuid, p_outcome text, p_reason text,
    p_force boolean default false, p_reference text default null, p_response jsonb default null, p_answer jsonb default null,
    p_code text default null, p_message text default null, p_tenant text default '', p_person text default null,
    p_before jsonb default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_call  pgonce.external_call;
    v_row   pgonce.intent;
    v_rules pgonce.external_provider;
    v_risk  text;
    v_was   text;
    v_keep  boolean;
    v_ended boolean;
begin
    if (p_outcome collate "C" in ('confirmed', 'failed', 'resend')) is not true or coalesce(btrim(p_reason), '') = ''
       or octet_length(p_reference) > 1000 then
        raise exception 'a call is settled as confirmed, failed or resend, with a reason' using errcode = '22023',
            hint = 'Say why, such as a ticket; it is kept with your name.';
    end if;
    perform pgonce._force_durable_commit();
    select c.* into v_call from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.effect_key = p_effect_key;
    perform pgonce._external_lock(v_call.provider, p_reference, p_tenant);
    select i.* into v_row from pgonce.intent i
     where i.tenant = v_call.tenant and i.scope = v_call.scope and i.key = v_call.key for no key update;
    select c.* into v_call from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.effect_key = p_effect_key for update;
    if not found then
        raise exception 'there is no call with this effect key' using errcode = '42704',
            hint = 'Look at pgonce.external_calls; compare the tenant, too.';
    end if;
    v_was := pgonce._external_status(v_call);
    if not to_jsonb(v_call) @> p_before then
        raise exception 'this call was changed since it was looked at: it is % now', v_was using errcode = '55000',
            detail = format('provider %s, step %s, sent %s times.', v_call.provider, v_call.step, v_call.sends),
            hint = 'Nothing was done. Look at it again, then decide.';
    end if;
    v_rules := pgonce._external_rules(v_call.provider);
    v_ended := v_call.status in ('confirmed', 'failed') and (v_call.ended_at is not null
        or v_call.expires_at <= coalesce(v_row.first_at, pgonce.now()));
    if v_ended and p_outcome collate "C" = 'resend' then
        raise exception 'a call whose command''s retention is over is not sent again' using errcode = '55000',
            detail = format('provider %s, step %s.', v_call.provider, v_call.step),
            hint = 'The next command of this key makes a call of its own, under another effect key.';
    end if;
    v_risk := pgonce._external_risk(v_call, v_row, p_outcome);
    if v_risk is not null and p_force is not true then
        raise exception '% could be wrong or open a second effect: %', p_outcome, v_risk using errcode = '55000',
            detail = format('provider %s, step %s, sent %s times.', v_call.provider, v_call.step, v_call.sends),
            hint = 'Ask the provider first. If you know better, force it.';
    end if;
    perform pgonce._audit_act('external ' || p_outcome, v_call.scope, v_call.key, p_reason,
        to_jsonb(v_call) - '{request,response,digest,tenant,scope,key}'::text[], v_call.tenant, p_person, v_risk is not null);
    -- What may have happened stays unknown: it is sent again only while the provider knows its key.
    v_keep := p_outcome collate "C" <> 'resend' or v_risk is null and v_call.status in ('sent', 'unknown');
    -- What was decided before makes room; the audit has it.
    update pgonce.external_call c
       set status = case when v_keep and p_outcome collate "C" = 'resend' then 'unknown' else 'requested' end::pgonce.external_status,
           disputed = null, late_looks = 0, decided_at = null, decided_by = null,
           ended_at = case when v_ended then coalesce(c.ended_at, pgonce.now()) end,
           expires_at = case when not v_keep then pgonce.now() + coalesce(v_rules.keys_for, interval '0') end,
           next_look_at = case when v_keep and p_outcome collate "C" = 'resend' then c.next_look_at end, send_id = null,
           sends = case when v_keep then c.sends else 0 end, first_sent_at = case when v_keep then c.first_sent_at end,
           deadline_at = case when v_keep then c.deadline_at end,
           -- A report still finds what is to be sent again by the reference that it had.
           reference = case when p_outcome collate "C" = 'resend' or p_reference is null then c.reference end,
           response = case when v_keep then c.response end, failure_code = null, failure_message = null
     where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key
    returning c.* into v_call;
    if p_outcome <> 'resend' then
        perform pgonce._external_decide(v_call, p_outcome::pgonce.external_status, p_reference, p_response, p_answer, p_code,
            coalesce(p_message, p_reason), 'operator');
        perform pgonce._external_join(v_call.tenant, v_call.effect_key);
    end if;
    return v_was;
end
$$;
