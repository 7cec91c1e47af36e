-- pgonce._lease_fresh(...): the lease on an intent that pgonce._claim_fast has just called fresh, which is
--          most of them: one insert.
-- answers  as pgonce.claim
-- writes   the row, 'processing' under a new fence; or, where somebody was faster, the lease is
--          not positive, a contract limits its keys or the installation begins a new epoch, what
--          pgonce._claim_full writes
-- raises   as pgonce._claim_full
-- note     the look-up has checked the names, the scope, the lock and synchronous_commit
create or replace function pgonce._lease_fresh(p_scope text, p_key text, p_fingerprint bytea,
    p_lease interval, p_owner text, p_tenant text, p_correlation text)
returns pgonce.claimed
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_fence bigint;
begin
    insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence,
        first_at, last_at, lease_until, owner, correlation_id)
    select p_tenant, p_scope, p_key, p_fingerprint, 'processing', 1, pgonce._lease_number(e.epoch, e.life),
           n.now, n.now, n.now operator(pg_catalog.+) p_lease, pgonce._owner_or_session(p_owner), p_correlation
      from (select pgonce.now() as now offset 0) as n, pgonce.installation e
     where e.one and e.life operator(pg_catalog.=) pgonce._database_life() and e.timeline operator(pg_catalog.=) pgonce._timeline()
       and p_lease operator(pg_catalog.>) interval '0'
       and not exists (select from pgonce.scope s where s.max_keys is not null)
    on conflict on constraint one_row_per_intent do nothing
    returning fence into v_fence;
    if v_fence is null then
        return pgonce._claim_full(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation);
    end if;
    return row('fresh', v_fence, null, null, null, null, null, null, 1)::pgonce.claimed;
end
$$;
