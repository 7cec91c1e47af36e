-- pgonce.claim(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation): asks for the right
--          to do the work of an intent.
-- answers  one row; outcome is one of
--            fresh | takeover | retry   you hold it: do the work, then pgonce.succeed or pgonce.fail
--            replay | refused           finished: here is the answer
--            busy                       another attempt holds it: claim again after retry_after
-- locks    atomic mode: the intent's transaction-level advisory lock; replay: nothing
-- writes   atomic mode: nothing. Leased mode: the intent's row, in processing under a new fence
-- raises   P4000 P4001 P4003 scope, key or fingerprint missing; P4002 the key belongs to another request;
--          P4031 the answer is gone; 22023 a bad name or lease; 25006 not
--          finished, and the server is a standby or the transaction read-only
-- note     p_lease null is atomic mode: the open transaction is the claim, and success is recorded in it.
--          With a lease: commit the claim, work, then succeed or fail under the fence
-- example  begin;
--          select outcome, fence from pgonce.claim('orders.create', 'order-7', '\x5e88') \gset
--          -- outcome is fresh: do the work here, in this transaction
--          select pgonce.succeed('orders.create', 'order-7', '\x5e88', :fence, '{"order": 7}');
--          commit;
--          -- any later claim replays the answer
--          select outcome, answer from pgonce.claim('orders.create', 'order-7', '\x5e88');
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
        select case when g.outcome is null or pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint) is not true
                   then pgonce._claim_full(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation)
                   when p_lease is not null and g.outcome = 'fresh'
                   then pgonce._lease_fresh(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation)
                   else row(g.outcome, coalesce(g.fence, 1), g.answer, g.ref_type, g.ref_id, null, null, null,
                            coalesce(g.attempts, 1))::pgonce.claimed
               end as claimed
          from pgonce._claim_fast(p_scope, p_key, p_fingerprint, p_tenant) g
        offset 0  -- so that the case is evaluated once, not once a column
      ) as c;
end;
