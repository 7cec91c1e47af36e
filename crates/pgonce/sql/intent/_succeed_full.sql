-- pgonce._succeed_full(...): every success that pgonce.succeed cannot record with one statement.
-- answers  nothing
-- locks    the intent's row
-- writes   as pgonce.succeed
-- raises   as pgonce.succeed
create or replace function pgonce._succeed_full(p_scope text, p_key text, p_fingerprint bytea, p_fence bigint,
    p_answer jsonb, p_ref_type text, p_ref_id text, p_tenant text, p_correlation text, p_owner text, p_keep interval)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope;
    v_row      pgonce.intent;
    v_now      timestamptz;
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, p_fingerprint);
    if p_fence % 2 = 1 and not pgonce._is_open_attempt(p_tenant, p_scope, p_key) then
        perform pgonce._raise_transaction_ended();
    end if;
    v_contract := pgonce._contract(p_tenant, p_scope);
    perform pgonce._force_durable_commit();
    if p_fence = 1 then
        select r.* into v_row from pgonce._success_row(p_scope, p_key, p_fingerprint, p_answer, p_ref_type,
            p_ref_id, p_tenant, p_correlation, p_owner) r;
        v_row.expires_at := v_row.first_at + pgonce._retention_for(v_contract, p_keep);
        insert into pgonce.intent select v_row.*
        on conflict on constraint one_row_per_intent do nothing;
    else
        -- The row first, the clock after: a wait for the row must not shorten its retention.
        perform from pgonce.intent i
          where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for update;
        v_now := pgonce.now();
        update pgonce.intent i
           set status = 'succeeded', fence = p_fence, last_at = v_now, lease_until = null,
               attempts = i.attempts + (p_fence % 2)::integer,
               expires_at = v_now + pgonce._retention_for(v_contract, p_keep),
               answer = pgonce._answer_to_keep(v_contract, p_scope, p_answer, p_tenant, false),
               ref_type = case when v_contract.storage in ('answer', 'reference') then p_ref_type end,
               ref_id = case when v_contract.storage in ('answer', 'reference') then p_ref_id end,
               correlation_id = coalesce(p_correlation, i.correlation_id),
               owner = coalesce(p_owner, i.owner),
               failure_code = null, failure_message = null
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
           and i.fingerprint = p_fingerprint
           and pgonce._fence_is_current(i, p_fence, v_now, v_contract.stale);
    end if;
    if not found then
        perform pgonce._raise_not_holder('P4010', 'the success was not recorded',
            p_scope, p_key, p_fingerprint, p_fence, p_tenant);
    end if;
end
$$;
