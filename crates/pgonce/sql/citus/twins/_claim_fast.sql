-- pgonce._claim_fast on Citus: as intent/_claim_fast.sql, delegated.
-- note     what it calls neither fresh nor a replay it leaves untouched, for pgonce.claim
create or replace function pgonce._claim_fast(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (outcome text, fence bigint, answer jsonb, ref_type text, ref_id text, attempts integer)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_known boolean;
    v_done  boolean;
    v_now   timestamptz := pgonce.now();
    v_claim pgonce.claimed;
begin
    select true, i.status = 'succeeded' and i.fingerprint = p_fingerprint and i.gone_at is null and i.expires_at > v_now
      into v_known, v_done from pgonce.intent i
     where i.tenant = p_tenant and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    if v_known is null or v_done then
        v_claim := pgonce._claim_full(p_scope, p_key, p_fingerprint, null, null, p_tenant, null);
    end if;
    if v_claim.outcome in ('fresh', 'replay') then
        return query select v_claim.outcome, v_claim.fence, v_claim.answer, v_claim.ref_type, v_claim.ref_id, v_claim.attempts;
    else
        return query select null::text, null::bigint, null::jsonb, null::text, null::text, null::integer;
    end if;
end
$$;
