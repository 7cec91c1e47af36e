-- pgonce._external_join(p_tenant, p_effect_key): applies the provider's reports that came before the call had its reference, or while a
--          failover had lost the call.
-- answers  the call as it is then
-- locks    nothing more: the caller holds the reference's lock and the rows of the intent and of the call
-- writes   the reports, and what they decide
-- note     a report from before this life of the key began may be about another one
create or replace function pgonce._external_join(p_tenant text, p_effect_key uuid)
returns pgonce.external_call
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_call  pgonce.external_call;
    v_event pgonce.external_event;
begin
    select c.* into strict v_call from pgonce.external_call c
     where c.tenant = p_tenant collate "C" and c.effect_key = p_effect_key;
    for v_event in
        update pgonce.external_event e set applied_at = pgonce.now(), effect_key = v_call.effect_key
         where e.tenant = v_call.tenant and e.provider = v_call.provider and e.applied_at is null
           and (e.effect_key = v_call.effect_key and (e.reference = v_call.reference or e.seen_at >= v_call.begun_at)
                or e.effect_key is null and e.reference = v_call.reference
                   -- Where several calls share the reference, only a report that names its call says which.
                   and not exists (select from pgonce.external_call o where o.tenant = v_call.tenant
                       and o.provider = v_call.provider and o.reference = v_call.reference and o.effect_key <> v_call.effect_key))
        returning e.*
    loop
        perform pgonce._external_decide(v_call, v_event.outcome, v_event.reference, v_event.response, v_event.answer,
            v_event.failure_code, v_event.failure_message, 'event ' || v_event.event_id);
        select c.* into strict v_call from pgonce.external_call c
         where c.tenant = p_tenant collate "C" and c.effect_key = p_effect_key;
    end loop;
    return v_call;
end
$$;
