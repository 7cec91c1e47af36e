-- pgonce.succeed(p_scope, p_key, p_fingerprint, p_fence, p_answer, p_ref_type, p_ref_id, p_tenant, ...):
--          records that the work is done, with its answer.
-- answers  nothing
-- locks    the intent's row
-- writes   atomic mode: the finished row, inserted once. Leased mode: the row of this fence. Exactly one row,
--          or it raises
-- raises   2D000 an atomic claim was made in another transaction; P4010 nothing to record it on, or another
--          attempt finished first; P4012 a newer attempt holds the intent, or its lease ran out and may not
--          be used any more; P4002 it belongs to another request; P4000 P4001 P4003 22023 bad input
-- note     p_keep keeps this answer for longer or shorter than the contract's retention
-- example  select fence from pgonce.claim('mail.send', 'mail-8', '\x5e88', '30 seconds') \gset
--          -- the work happens here, outside of any transaction
--          select pgonce.succeed('mail.send', 'mail-8', '\x5e88', :fence, '{"sent": true}');
create or replace function pgonce.succeed(
    p_scope text, p_key text, p_fingerprint bytea, p_fence bigint, p_answer jsonb default null,
    p_ref_type text default null, p_ref_id text default null, p_tenant text default '',
    p_correlation text default null, p_owner text default null, p_keep interval default null
)
returns void
language plpgsql volatile
as $$
declare
    v_contract pgonce.scope;
    v_row      pgonce.intent;
    v_now      timestamptz;
begin
    if p_keep is null and p_fence % 2 = 0 and pgonce._force_durable_commit() then
        -- A lease under the common contract: one statement; what it does not fit goes on below.
        update pgonce.intent i
           set status = 'succeeded', last_at = pgonce.now(), lease_until = null,
               expires_at = pgonce.now() + s.retention, answer = p_answer, ref_type = p_ref_type,
               ref_id = p_ref_id, correlation_id = coalesce(p_correlation, i.correlation_id),
               owner = coalesce(p_owner, i.owner), failure_code = null, failure_message = null
          from pgonce.scope s
         where i.tenant = p_tenant and i.scope = p_scope and i.key = p_key
           and i.fingerprint = p_fingerprint and i.fence = p_fence and i.status = 'processing'
           and p_fence >= pgonce._timeline() << 41
           and s.tenant = p_tenant and s.scope = p_scope and s.storage = 'answer';
        if found then
            return;
        end if;
    end if;
    if p_keep is null and p_fence = 1 and pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint)
       and pgonce._force_durable_commit() then
        insert into pgonce.intent
        select r.* from pgonce._success_row(p_scope, p_key, p_fingerprint, p_answer, p_ref_type,
            p_ref_id, p_tenant, p_correlation, p_owner) r
        on conflict on constraint one_row_per_intent do nothing;
    elsif p_fence = 1 and pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint)
       and pgonce._force_durable_commit() then
        select r.* into v_row from pgonce._success_row(p_scope, p_key, p_fingerprint, p_answer, p_ref_type,
            p_ref_id, p_tenant, p_correlation, p_owner) r;
        v_row.expires_at := v_row.first_at + pgonce._retention_for(pgonce._contract(p_tenant, p_scope), p_keep);
        insert into pgonce.intent select v_row.*
        on conflict on constraint one_row_per_intent do nothing;
    else
        perform pgonce._check_names(p_tenant, p_scope, p_key, p_fingerprint);
        v_contract := pgonce._contract(p_tenant, p_scope);
        perform pgonce._force_durable_commit();
        -- The row first, the clock after: a wait for the row must not shorten its retention.
        perform from pgonce.intent i
          where i.tenant = p_tenant and i.scope = p_scope and i.key = p_key for update;
        v_now := pgonce.now();
        update pgonce.intent i
           set status = 'succeeded', fence = p_fence, last_at = v_now, lease_until = null,
               attempts = i.attempts + (p_fence % 2)::integer,
               expires_at = v_now + pgonce._retention_for(v_contract, p_keep),
               answer = case when v_contract.storage = 'answer' then p_answer end,
               ref_type = case when v_contract.storage in ('answer', 'reference') then p_ref_type end,
               ref_id = case when v_contract.storage in ('answer', 'reference') then p_ref_id end,
               correlation_id = coalesce(p_correlation, i.correlation_id),
               owner = coalesce(p_owner, i.owner),
               failure_code = null, failure_message = null
         where i.tenant = p_tenant and i.scope = p_scope and i.key = p_key
           and i.fingerprint = p_fingerprint
           and pgonce._fence_is_current(i, p_fence, v_now);
    end if;
    if not found then
        perform pgonce._raise_not_holder('P4010', 'the success was not recorded',
            p_scope, p_key, p_fingerprint, p_fence, p_tenant);
    end if;
end
$$;
