-- pgonce.claim(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation): asks for the right
--          to do the work of an intent.
-- answers  one row; outcome is one of
--            fresh | takeover | retry   you hold it: do the work, then pgonce.succeed or pgonce.fail
--            replay | refused           finished: here is the answer
--            busy                       another attempt holds it: claim again after retry_after
-- locks    atomic mode: the intent's transaction-level advisory lock; replay: nothing
-- writes   atomic mode: nothing. Leased mode: the intent's row, in processing under a new fence
-- raises   P4000 P4001 P4003 scope, key or fingerprint missing; P4002 the key belongs to another request;
--          P4031 the answer is gone; P4104 half distributed by Citus; 22023 a bad name or lease; 25006 not finished, and the
--          server is a standby or the transaction read-only; P4110 not finished, and its home is another region; P4111 this
--          region must join again
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
        -- What pgonce._claim_fast does, with sub-selects: inlined like it, and without a join, which would cost a quarter more.
        select coalesce(
                   (select case when i.status = 'succeeded' and i.fingerprint = p_fingerprint
                                    and i.gone_at is null and i.expires_at > pgonce.now()
                               then row('replay', i.fence, i.answer, i.ref_type, i.ref_id, null, null, null, i.attempts)::pgonce.claimed
                               else pgonce._claim_full(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation)
                           end
                      from pgonce.intent i
                     where i.tenant = p_tenant and i.scope = p_scope
                       -- Set before a row is seen: the policy by_key compares with it.
                       and i.key = (select set_config('pgonce.key', p_key, true))),
                   case when pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint)
                             and pgonce._scope_is_allowed(p_tenant, p_scope, p_key)
                             and current_setting('synchronous_commit') = 'on' and current_setting('transaction_read_only') = 'off'
                             and coalesce(current_setting('pgonce.attempt', true), '') = '' and pgonce._is_one_node()
                             and pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key))
                             and set_config('pgonce.attempt', pgonce._intent_name(p_tenant, p_scope, p_key), true) is not null
                             and (p_lease is not null or pgonce._is_unguarded(p_scope) or pgonce._guard_claim(p_tenant, p_scope, p_key))
                        then case when p_lease is null
                            then row('fresh', 1::bigint, null, null, null, null, null, null, 1)::pgonce.claimed
                            else pgonce._lease_fresh(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation) end
                        else pgonce._claim_full(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation)
                   end) as claimed
        offset 0  -- so that the case is evaluated once, not once a column
      ) as c;
end;
