-- pgonce.claim(p_scope, p_key, p_fingerprint, …): asks for the right to do the work.
-- answers  one row; outcome is one of
--            fresh | takeover | retry   you hold it: do the work, then pgonce.succeed or pgonce.fail
--            replay | refused           finished: here is the answer
--            busy                       somebody holds it: come back after retry_after
--          p_lease null is atomic mode: your open transaction is the claim.
-- locks    fresh: the intent's transaction-level advisory lock; replay: nothing
-- writes   nothing in atomic mode; the rest is in pgonce.claim_slowly
-- raises   P4000 P4001 P4002 P4003 P4031 22023
-- note     the two common answers, "absent" and "finished", are given here by one plain query
--          that PostgreSQL inlines into the caller's: PL/pgSQL would cost more than the whole
--          protocol. Inlining is why it is labelled stable. Its body is parsed when it is
--          created, so no search_path can bend it.
create or replace function pgonce.claim(
    p_scope text, p_key text, p_fingerprint bytea, p_lease interval default null,
    p_owner text default null, p_tenant text default '', p_correlation text default null
)
returns table (outcome text, fence bigint, answer jsonb, ref_type text, ref_id text,
    failure_code text, failure_message text, retry_after interval, attempts integer)
language sql stable
begin atomic
    select (c.claimed).outcome, (c.claimed).fence, (c.claimed).answer, (c.claimed).ref_type,
           (c.claimed).ref_id, (c.claimed).failure_code, (c.claimed).failure_message,
           (c.claimed).retry_after, (c.claimed).attempts
      from (
        select case
            when i.status is null and p_lease is null
                 and octet_length(p_key) between 1 and 255 and octet_length(p_fingerprint) between 1 and 64
                 and octet_length(p_scope) between 1 and 255 and octet_length(p_tenant) <= 255
                 and pgonce.known_scope(p_tenant, p_scope)
                 and current_setting('synchronous_commit') <> 'off'
                 and pg_try_advisory_xact_lock(pgonce.lock_id(p_tenant, p_scope, p_key))
                then row('fresh', 1, null, null, null, null, null, null, 1)::pgonce.claimed
            when i.status = 'succeeded' and i.fingerprint = p_fingerprint
                 and i.gone_at is null and i.expires_at > pgonce.now()
                then row('replay', i.fence, i.answer, i.ref_type, i.ref_id, null, null, null,
                         i.attempts)::pgonce.claimed
            else pgonce.claim_slowly(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation)
            end as claimed
          from (select) as one
          left join pgonce.intent i
                 on i.tenant = p_tenant and i.scope = p_scope and i.key = p_key
        offset 0  -- so that the case is evaluated once, not once a column
      ) as c;
end;
