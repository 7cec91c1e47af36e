-- pgonce._claim_fast(p_scope, p_key, p_fingerprint, p_tenant): the two common answers of a claim,
--          "absent" and "finished", by one plain query.
-- answers  one row: fresh (you hold it, fence 1) | replay | null: ask pgonce.claim
-- locks    fresh: the intent's advisory lock until the end of the transaction; replay: nothing
-- writes   the setting pgonce.key, until the end of the transaction: an application sees the intents of that key only;
--          fresh: the setting pgonce.attempt, as pgonce._open_attempt does
-- note     PostgreSQL inlines it into the caller's statement, which is why it is labelled stable:
--          PL/pgSQL would cost more than the whole protocol. Its body is parsed when it is
--          created, so no search_path can bend it.
--          The caller has seen to it that pgonce._names_fit: every further expression here costs
--          every command. Where synchronous_commit is not plainly on, or nothing can be
--          written, pgonce.claim sees to it; where the transaction holds another attempt already; and where the
--          scope may have a commit guard: a look outside of a transaction opens none.
create or replace function pgonce._claim_fast(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (outcome text, fence bigint, answer jsonb, ref_type text, ref_id text, attempts integer)
language sql stable
begin atomic
    select case
               when i.status is null then
                   case when pgonce._scope_is_allowed(p_tenant, p_scope, p_key) and pgonce._is_unguarded(p_scope)
                        and current_setting('synchronous_commit') = 'on' and current_setting('transaction_read_only') = 'off'
                        and coalesce(current_setting('pgonce.attempt', true), '') = '' and pgonce._is_one_node()
                        and pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key))
                        and set_config('pgonce.attempt', pgonce._intent_name(p_tenant, p_scope, p_key), true) is not null
                   then 'fresh' end
               when i.status = 'succeeded' and i.fingerprint = p_fingerprint
                    and i.gone_at is null and i.expires_at > pgonce.now()
                   then 'replay'
           end,
           i.fence, i.answer, i.ref_type, i.ref_id, i.attempts
      from (select set_config('pgonce.key', p_key, true) offset 0) as one  -- first: see the policy by_key
      left join pgonce.intent i on i.tenant = p_tenant and i.scope = p_scope and i.key = p_key;
end;
