-- pgonce._act_risk(p_act, p_intent): what stands against an operator's act on an intent.
-- answers  fits: whether the act fits its status, whatever is forced; risk: why it could open a second effect, and so needs force;
--          null: it could not
-- raises   P4000 the scope has no contract
-- note     pgonce.intervene asks under the row's lock; who asks before it only learns how it was
create or replace function pgonce._act_risk(p_act text, p_intent pgonce.intent, out fits boolean, out risk text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope := pgonce._contract_of(p_intent.tenant, p_intent.scope, true);
begin
    fits := not (p_act in ('settle', 'fail') and p_intent.status not in ('processing', 'failed_retryable')
        or p_act = 'release' and p_intent.status <> 'processing' and not (p_intent.status = 'failed_retryable' and p_intent.vanished_at is not null)
        or p_act = 'retry' and p_intent.status <> 'failed_final'
        or p_intent.gone_at is not null and p_act <> 'evict');
    risk := case
        when p_intent.status = 'processing' and p_intent.lease_until > pgonce.now()
            then 'its holder is alive until ' || p_intent.lease_until || case when p_intent.vanished_at is not null then ', and an earlier one vanished' else '' end
        when p_act = 'fail' and exists (select from pgonce.external_call c
              where c.tenant = p_intent.tenant and c.scope = p_intent.scope and c.key = p_intent.key and c.ended_at is null
                and (c.status in ('sent', 'unknown', 'confirmed') or c.disputed is not null))
            then 'its call to a provider happened, or may have'
        when p_act in ('settle', 'fail') then null
        when p_intent.status = 'processing' and (p_act = 'evict' or v_contract.stale <> 'takeover' or v_contract.probe is not null)
            then 'its holder vanished, and it may have happened'
        -- An application may call a failure of its own so.
        when p_intent.failure_code = 'abandoned' and p_intent.status = 'failed_final'
         and (p_intent.fence % 2 = 0 or p_intent.vanished_at is not null) then 'it may have happened'
        -- Of a lease: what an attempt in one transaction did was rolled back.
        when p_intent.status = 'failed_final' and p_intent.fence % 2 = 0 and left(p_intent.failure_code, 6) = 'http_5'
            then 'the service failed, and it may have happened'
        when p_intent.status = 'succeeded' then 'it has happened'
        when p_intent.status <> 'processing' and p_intent.vanished_at is not null then 'an earlier holder vanished, and it may have happened'
    end;
end
$$;
