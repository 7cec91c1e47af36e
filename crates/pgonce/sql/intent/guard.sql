-- pgonce.guard(p_scope, p_key, p_fence, p_tenant): lets a database write of leased work pass, or stops an
--          attempt that was taken over. Call it first in the transaction of the write.
-- answers  nothing
-- locks    the intent's row until the end of the transaction: no takeover can happen in between
-- writes   nothing
-- raises   P4012 this fence does not hold the intent any more
-- note     a lease of an earlier epoch of the installation that has run out may have been taken over by a
--          claim that a failover lost: only one that is
--          still alive passes. So it is where the contract says refuse: a claim may have answered that the intent
--          was abandoned
-- example  select fence from pgonce.claim('mail.send', 'mail-10', '\x5e88', '30 seconds') \gset
--          begin;
--          select pgonce.guard('mail.send', 'mail-10', :fence);
--          -- write here
--          commit;
create or replace function pgonce.guard(p_scope text, p_key text, p_fence bigint, p_tenant text default '')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row pgonce.intent;
begin
    select i.* into v_row from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for no key update;
    if not found or p_fence is null or v_row.fence <> p_fence or v_row.status <> 'processing'
       or v_row.lease_until <= pgonce.now() and (p_fence < pgonce._first_fence(p_tenant)
           or (pgonce._contract_of(p_tenant, p_scope, true)).stale = 'refuse') then
        raise exception 'fence % does not hold the intent', coalesce(p_fence::text, 'null') using errcode = 'P4012',
            detail = format('scope %s: %s.', p_scope, coalesce('now fence ' || v_row.fence || ', status ' || v_row.status, 'no record of the key')),
            hint = 'Stop the work and roll back; claim again to learn the answer.';
    end if;
    perform pgonce._open_attempt(p_tenant, p_scope, p_key, v_row.first_at);
end
$$;
