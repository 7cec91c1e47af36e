-- pgonce.external_send(p_scope, p_key, p_fence, p_step, p_provider, p_digest, p_request, p_decides, p_send, p_tenant): records
--          that a leased command is about to call a provider. Commit it, and call out only where it answers send.
-- answers  one row. action: send (call out with effect_key, then pgonce.external_record), done or failed (an earlier attempt
--          did it: here is how it ended), unknown (it may have happened and cannot be sent again: look it up), wait (nothing
--          was sent: after retry_after)
-- locks    the intent's row and the step's; the provider's where it has limits; the reference of a report that came before the step
-- writes   the step: requested, or sent. One of an earlier life of the key, whose retention is over, makes room; where it is
--          disputed it stays, under another name, until an operator has settled it. What the provider has reported of this effect key
-- raises   P4012 this fence does not hold the intent any more; P4086 the step was sent with another request; 22023 bad input; 25000 the
--          provider has reported a reference of this effect key, and the transaction is not READ COMMITTED
-- note     p_digest stands for the request, SHA-256 say; empty: not compared. p_request is kept as it is given: reduce it
--          first. p_decides: the outcome of this step is that of the command, so that reconciliation may end both. p_send names
--          this one try: called again with it after a lost reply, the answer is send again. What was never sent binds nobody: it
--          may be another request. What may have happened in an earlier life and is not decided stands for this one, too
-- example  select fence from pgonce.claim('pay', 'order-1', '\x5e88', '30 seconds') \gset
--          select action, effect_key from pgonce.external_send('pay', 'order-1', :fence, 'charge', 'bank', '\x01');
create or replace function pgonce.external_send(p_scope text, p_key text, p_fence bigint, p_step text, p_provider text,
    p_digest bytea, p_request jsonb default null, p_decides boolean default false, p_send uuid default null,
    p_tenant text default '')
returns pgonce.external_step
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_call  pgonce.external_call;
    v_key   uuid;
    v_rules pgonce.external_provider;
    v_begun timestamptz;
    v_life  uuid;
    v_now   timestamptz;
    v_wait  interval;
    v_known boolean;
begin
    if (octet_length(p_step) between 1 and 200 and octet_length(p_provider) between 1 and 200
        and octet_length(p_digest) <= 64 and p_decides is not null) is not true then
        raise exception 'a step and a provider need names of 1 to 200 bytes, and a request its digest' using errcode = '22023',
            hint = 'For example: pgonce.external_send(''pay'', ''order-1'', fence, ''charge'', ''bank'', sha256(request)).';
    end if;
    perform pgonce._force_durable_commit();
    v_rules := pgonce._external_rules(p_provider);
    -- The life of this fence, or the guard refuses it.
    select i.first_at into v_begun from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    -- Where the provider knows a request by its key only as our reference, no two lives of a command may share one: a look-up would find
    -- what another has done. Where it honours keys they may: then what a failover has lost is not done twice.
    v_life := case when v_rules.keys_for is null then md5(extract(epoch from v_begun)::text)::uuid end;
    v_key := pgonce._effect_key(p_tenant, p_scope, p_key, p_step, v_life);
    perform pgonce._external_lock(e.provider, e.reference, e.tenant) from pgonce.external_event e
      where e.tenant = p_tenant collate "C" and e.effect_key = v_key and e.applied_at is null and e.provider = p_provider collate "C"
      order by e.reference;
    v_known := found;
    perform pgonce.guard(p_scope, p_key, p_fence, p_tenant);
    -- One holder at a time gets here, by the lock of its intent.
    select c.* into v_call from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
       and c.step = p_step collate "C" for update;
    v_now := pgonce.now();
    if v_call.status in ('confirmed', 'failed') and (v_call.ended_at is not null or v_call.expires_at <= v_begun) then
        v_key := pgonce._effect_key(p_tenant, p_scope, p_key, p_step, coalesce(v_life, v_call.effect_key));
        -- What an operator has to look at stays, and is of no life any more.
        update pgonce.external_call c set step = c.step || ' ' || c.effect_key, ended_at = coalesce(c.ended_at, v_now)
         where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key and c.disputed is not null;
        v_call := null;
    else
        v_key := coalesce(v_call.effect_key, v_key);
        if v_call.status = 'requested' and (v_call.digest <> p_digest or v_call.provider <> p_provider collate "C") then
            v_call := null;
        end if;
    end if;
    if v_call.status is null then
        delete from pgonce.external_call c
         where c.tenant = p_tenant collate "C" and c.scope = p_scope collate "C" and c.key = p_key collate "C"
           and c.step = p_step collate "C";
        -- A disputed call of an earlier life keeps its key until an operator has settled it.
        while exists (select from pgonce.external_call c where c.tenant = p_tenant collate "C" and c.effect_key = v_key) loop
            v_key := pgonce._effect_key(p_tenant, p_scope, p_key, p_step, v_key);
        end loop;
        -- It can be purged until it is sent; not while the provider may know the key of the life before, which comes from it.
        insert into pgonce.external_call (effect_key, fence, first_fence, begun_at, requested_at, expires_at, status, decides, tenant,
            scope, key, step, provider, digest, request)
        values (v_key, p_fence, p_fence, v_begun, v_now, v_now + coalesce(v_rules.keys_for, interval '0'), 'requested', p_decides,
            p_tenant, p_scope, p_key, p_step, p_provider, p_digest, p_request)
        returning * into v_call;
        if v_known then
            v_call := pgonce._external_join(v_call.tenant, v_call.effect_key);
        end if;
    end if;
    if v_call.digest <> p_digest or v_call.provider <> p_provider collate "C" then
        raise exception 'step % was begun with another request', quote_literal(p_step) using errcode = 'P4086',
            detail = format('scope %s, provider %s, status %s.', p_scope, v_call.provider, v_call.status),
            hint = 'Make the request of a step from what the command was asked, not from the time or a random number.';
    end if;
    if v_call.begun_at is distinct from v_begun then
        update pgonce.external_call c set begun_at = v_begun
         where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key;
    end if;
    if v_call.status in ('confirmed', 'failed') then
        return pgonce._external_step(null, v_call);
    elsif v_call.status = 'sent' and v_call.send_id = p_send then
        return pgonce._external_step('send', v_call);
    end if;
    if v_call.first_sent_at is not null and (v_call.first_sent_at + v_rules.keys_for > v_now) is not true then
        return pgonce._external_step('unknown', v_call);
    end if;
    v_wait := pgonce._external_gate(p_provider);
    if v_wait is not null then
        return pgonce._external_step('wait', v_call, v_wait);
    end if;
    update pgonce.external_call c
       set status = 'sent', fence = p_fence, send_id = p_send, sends = c.sends + 1, sent_at = v_now,
           first_sent_at = coalesce(c.first_sent_at, v_now), next_look_at = v_now + v_rules.look_after, expires_at = null,
           deadline_at = coalesce(c.deadline_at, v_now + v_rules.deadline)
     where c.tenant = v_call.tenant and c.scope = v_call.scope and c.key = v_call.key and c.step = v_call.step
    returning c.* into v_call;
    return pgonce._external_step('send', v_call);
end
$$;
