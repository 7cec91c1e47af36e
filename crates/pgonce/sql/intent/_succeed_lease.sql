-- pgonce._succeed_lease(...): the success of a lease under the common contract (of this tenant, keeps answers): one
--          statement.
-- answers  false: it does not fit; pgonce._succeed_full records it, or says why not
-- locks    the intent's row
-- writes   the row of this fence
create or replace function pgonce._succeed_lease(p_scope text, p_key text, p_fingerprint bytea, p_fence bigint,
    p_answer jsonb, p_ref_type text, p_ref_id text, p_tenant text, p_correlation text, p_owner text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._force_durable_commit();
    update pgonce.intent i
       set status = 'succeeded', last_at = pgonce.now(), lease_until = null,
           expires_at = pgonce.now() + s.retention, answer = p_answer, ref_type = p_ref_type,
           ref_id = p_ref_id, correlation_id = coalesce(p_correlation, i.correlation_id),
           owner = coalesce(p_owner, i.owner), failure_code = null, failure_message = null
      -- One time for the fence, read apart: pgonce._fence_is_current names it twice, and would not be inlined with a call.
      from pgonce.scope s, (select pgonce.now() as now offset 0) as n
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
       and i.fingerprint = p_fingerprint
       and pgonce._fence_is_current(i, p_fence, n.now, s.stale)
       and s.tenant = p_tenant collate "C" and s.scope = p_scope collate "C" and s.storage = 'answer'
       and coalesce(octet_length(p_answer::text), 0) <= s.max_answer
       and coalesce(greatest(octet_length(p_ref_id), octet_length(p_correlation)), 0) <= 1000;
    return found;
end
$$;
