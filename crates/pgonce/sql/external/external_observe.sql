-- pgonce.external_observe(p_provider, p_outcome, p_effect_key, p_reference, p_event_id, p_response, p_answer, p_code, p_message,
--          p_source, p_tenant, p_sent_at): takes in what a provider says about a call, by webhook or when it is asked.
-- answers  applied; known: it was decided so before, or the event came before; disputed: it was decided otherwise before, which
--          stays, and an operator sees it; waiting: no call has this key or reference yet, the event is kept until one has it;
--          no_call: there is none, or it was sent again since, and nothing was kept
-- locks    the reference, the intent's row and the call's
-- writes   the event; the call; where the call's outcome is that of the command and nobody is at work on it, the command, with
--          p_answer
-- raises   22023 bad input; P4050 the event's id came before with another outcome; 25000 there is a reference, and the transaction
--          is not READ COMMITTED: it would not see the call that got it meanwhile
-- note     verify who sent a webhook first. p_response is kept as it is given. p_sent_at, as pgonce.external_due answers it, is for
--          what a look-up found: that it failed says nothing about a try that was sent, or allowed by an operator, since then
-- example  select pgonce.external_observe('bank', 'confirmed', p_reference => 'ch_8', p_event_id => 'evt_1');
drop function if exists pgonce.external_observe(text, text, uuid, text, text, jsonb, jsonb, text, text, text, text);
create or replace function pgonce.external_observe(p_provider text, p_outcome text, p_effect_key uuid default null,
    p_reference text default null, p_event_id text default null, p_response jsonb default null, p_answer jsonb default null,
    p_code text default null, p_message text default null, p_source text default 'webhook', p_tenant text default '',
    p_sent_at timestamptz default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_event  pgonce.external_event;
    v_call   pgonce.external_call;
    v_result text;
begin
    if (p_outcome collate "C" in ('confirmed', 'failed') and octet_length(p_provider) between 1 and 200
        and p_tenant is not null and num_nonnulls(p_effect_key, p_reference) > 0) is not true
       or octet_length(p_reference) > 1000 or octet_length(p_event_id) not between 1 and 1000 then
        raise exception 'a report says confirmed or failed, and names a call by its effect key or reference' using errcode = '22023',
            hint = 'A report that says neither decides nothing: leave it out.';
    end if;
    perform pgonce._force_durable_commit();
    perform pgonce._external_lock(p_provider, p_reference, p_tenant);
    if p_event_id is not null then
        insert into pgonce.external_event as e (seen_at, effect_key, outcome, tenant, provider, event_id, reference, response,
            answer, failure_code, failure_message)
        values (pgonce.now(), p_effect_key, p_outcome::pgonce.external_status, p_tenant, p_provider, p_event_id, p_reference,
            p_response, p_answer, left(p_code, 255), left(p_message, 4000))
        on conflict on constraint one_row_per_provider_event do nothing;
        if not found then
            select e.* into strict v_event from pgonce.external_event e
             where e.tenant = p_tenant collate "C" and e.provider = p_provider collate "C" and e.event_id = p_event_id collate "C";
            if v_event.outcome <> p_outcome::pgonce.external_status or v_event.reference <> p_reference collate "C" then
                raise exception 'event % came before with another outcome', quote_literal(p_event_id) using errcode = 'P4050',
                    detail = format('provider %s.', p_provider), hint = 'The provider reused an id: look at both reports.';
            end if;
            if v_event.applied_at is not null then
                return 'known';
            end if;
        end if;
    end if;
    -- By the key, else by the reference where one call has it.
    select c.* into v_call from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.effect_key = p_effect_key and c.provider = p_provider collate "C";
    if not found and p_effect_key is null and p_reference is not null then
        select c.* into v_call from pgonce.external_call c
         where c.tenant = p_tenant collate "C" and c.provider = p_provider collate "C" and c.reference = p_reference collate "C"
           and not exists (select from pgonce.external_call o where o.tenant = c.tenant and o.provider = c.provider
               and o.reference = c.reference and o.effect_key <> c.effect_key);
    end if;
    if v_call.effect_key is null then
        return case when v_event.event_id is not null then 'known'
            when p_event_id is not null then 'waiting' else 'no_call' end;
    end if;
    perform from pgonce.intent i
      where i.tenant = v_call.tenant and i.scope = v_call.scope and i.key = v_call.key for no key update;
    select c.* into v_call from pgonce.external_call c
     where c.tenant = v_call.tenant and c.effect_key = v_call.effect_key for update;
    if not found or p_outcome collate "C" = 'failed' and p_sent_at is not null
       and (v_call.status = 'requested' or v_call.sent_at is distinct from p_sent_at) then
        return 'no_call';
    end if;
    v_result := pgonce._external_decide(v_call, p_outcome::pgonce.external_status, p_reference, p_response, p_answer, p_code,
        p_message, case when p_event_id is null then p_source else 'event ' || p_event_id end);
    update pgonce.external_event e set applied_at = pgonce.now(), effect_key = v_call.effect_key
     where e.tenant = p_tenant collate "C" and e.provider = p_provider collate "C" and e.event_id = p_event_id collate "C";
    perform pgonce._external_join(v_call.tenant, v_call.effect_key);
    return v_result;
end
$$;
