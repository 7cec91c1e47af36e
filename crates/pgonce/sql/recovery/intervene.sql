-- pgonce.intervene(p_act, p_scope, p_key, p_reason, p_force, p_answer, p_code, p_message, p_tenant, p_person, p_before): an operator's
--          act on one intent. settle: it happened, p_answer is its answer; fail: it failed permanently, with p_code and
--          p_message; release: the next claim does it, by force as a retry of what did not happen, otherwise as a takeover; retry: a
--          permanent failure may be tried again; evict: its record is removed, the key is free.
-- answers  the status before
-- locks    the intent's row: a holder that is inside its guarded write comes first
-- writes   the row, or its removal; a row of pgonce.operator_act records who, why and what was
-- raises   22023 an unknown act or no reason; 42704 there is no such intent; 55000 the act does not fit its status, or it
--          would open a second effect (a holder is alive, it may have happened, or it has happened) and p_force is not set, or
--          columns of the row have other values now than in p_before, such as {"status": "processing", "fence": 7}
-- note     the holder of a lease is turned away afterwards, as after a takeover: it cannot succeed over the act. What it did
--          outside of the database stays done. p_before keeps an act to what was seen: a holder may have succeeded since, which an
--          evict by force would forget
-- example  select fence from pgonce.claim('mail.send', 'mail-20', '\x5e88', '30 seconds') \gset
--          select pgonce.fail('mail.send', 'mail-20', '\x5e88', :fence, true, 'smtp', 'no route');
--          select pgonce.intervene('fail', 'mail.send', 'mail-20', 'ticket 7: address is gone', p_code => 'no_such_address');
drop function if exists pgonce.intervene(text, text, text, text, boolean, jsonb, text, text, text, text);
create or replace function pgonce.intervene(p_act text, p_scope text, p_key text, p_reason text,
    p_force boolean default false, p_answer jsonb default null, p_code text default null, p_message text default null,
    p_tenant text default '', p_person text default null, p_before jsonb default null)
returns pgonce.status
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row      pgonce.intent;
    v_contract pgonce.scope;
    v_now      timestamptz;
    v_fits     boolean;
    v_risk     text;
    v_fence    bigint;
begin
    if (p_act collate "C" in ('settle', 'fail', 'release', 'retry', 'evict')) is not true then
        raise exception 'there is no act %', coalesce(quote_literal(p_act), 'null') using errcode = '22023',
            hint = 'The acts are settle, fail, release, retry and evict.';
    elsif coalesce(btrim(p_reason), '') = '' or p_act = 'fail' and coalesce(p_code, '') = '' then
        raise exception 'an act on an intent needs a reason, and a failure its code' using errcode = '22023',
            hint = 'Say why, such as a ticket; it is kept with your name.';
    end if;
    perform pgonce._force_durable_commit();
    select i.* into v_row from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
       for update;
    if not found then
        raise exception 'there is no record of this intent' using errcode = '42704',
            hint = 'Compare scope, key and tenant byte by byte; an attempt in an open transaction has no record yet.';
    end if;
    if not to_jsonb(v_row) @> p_before then
        raise exception 'this intent was changed since it was looked at: it is % now', v_row.status using errcode = '55000',
            detail = format('scope %s, fence %s.', p_scope, v_row.fence),
            hint = 'Nothing was done. Look at it again, then decide.';
    end if;
    v_contract := pgonce._contract_of(p_tenant, p_scope, true);
    if p_act = 'fail' and v_contract.storage = 'error' then
        v_contract.storage := 'answer';
    end if;
    v_now := pgonce.now();
    select r.fits, r.risk into strict v_fits, v_risk from pgonce._act_risk(p_act, v_row) r;
    if not v_fits then
        raise exception 'an intent that is % cannot be changed by %', v_row.status, p_act using errcode = '55000',
            detail = format('scope %s, fence %s.', p_scope, v_row.fence),
            hint = 'settle, fail: what is not finished; release: a lease, or what had a holder that vanished; retry: a permanent failure; evict: any.';
    end if;
    if v_risk is not null and p_force is not true then
        raise exception '% could open a second effect: %', p_act, v_risk using errcode = '55000',
            detail = format('scope %s, attempts %s.', p_scope, v_row.attempts),
            hint = 'Find out first whether it happened: then settle or fail it. If you know better, force it.';
    end if;

    perform pgonce._audit_act(p_act, p_scope, p_key, p_reason, to_jsonb(v_row) - '{answer,tenant,scope,key}'::text[], p_tenant, p_person,
        v_risk is not null or p_act = 'release' and p_force);
    -- A new number, so that the holder is turned away as after a takeover.
    v_fence := pgonce._next_fence(v_row.fence, false, p_tenant);
    if p_act in ('retry', 'evict') then
        delete from pgonce.intent i
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    elsif p_act = 'release' then
        update pgonce.intent i
           set status = 'failed_retryable', fence = v_fence, lease_until = null, last_at = v_now,
               failure_code = 'released', failure_message = 'released by an operator',
               -- Unless forced, nobody has said that it did not happen: anybody may take over.
               vanished_at = case when p_force is not true then coalesce(i.vanished_at, v_now) end
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    else
        update pgonce.intent i
           set status = case p_act when 'settle' then 'succeeded' else 'failed_final' end::pgonce.status,
               fence = v_fence, lease_until = null, last_at = v_now, expires_at = v_now + v_contract.retention, vanished_at = null,
               answer = pgonce._answer_to_keep(v_contract, p_scope, p_answer, p_tenant, false),
               failure_code = case p_act when 'fail' then left(p_code, 255) end,
               failure_message = case p_act when 'fail' then left(coalesce(p_message, p_code), 4000) end
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    end if;
    return v_row.status;
end
$$;
