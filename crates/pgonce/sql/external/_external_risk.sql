-- pgonce._external_risk(p_call, p_intent, p_outcome): why an operator's decision about a call of this intent could be wrong or open a second
--          effect, and so needs force.
-- answers  in words; null: it could not
-- note     pgonce.external_settle asks under the rows' locks; who asks before it only learns how it was
create or replace function pgonce._external_risk(p_call pgonce.external_call, p_intent pgonce.intent, p_outcome text)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when p_call.status = 'sent' and p_intent.status = 'processing' and p_intent.lease_until > pgonce.now()
            then 'its sender is alive until ' || p_intent.lease_until
        when p_call.status = 'confirmed' and p_outcome <> 'confirmed' then 'it was confirmed'
        when p_call.status = 'failed' and p_outcome = 'confirmed' then 'the provider said that it failed'
        when p_outcome = 'resend' and p_call.status in ('sent', 'unknown')
             and (p_call.first_sent_at + (pgonce._external_rules(p_call.provider)).keys_for > pgonce.now()) is not true then 'it may have happened'
    end;
end
$$;
