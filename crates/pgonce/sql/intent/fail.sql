-- pgonce.fail(p_scope, p_key, p_fingerprint, p_fence, p_retryable, p_code, p_message, p_answer, p_tenant,
--          ...): records that the work failed. Call it in a transaction of its own: the one that failed is
--          rolled back.
-- answers  nothing
-- locks    the intent's row
-- writes   exactly one row, or it raises: failed_retryable (the next claim answers retry, or takeover where an earlier holder
--          vanished) or failed_final
--          (every later claim answers refused, with the same answer)
-- raises   P4011 another attempt settled the intent first, or there is nothing to record it on; P4012 a newer
--          attempt holds it; P4002 it belongs to another request; P4040 the answer is too large; P4000 P4001 P4003 22023
--          bad input
-- note     a correlation id of more than 1000 bytes is left out, with a warning
-- note     p_keep keeps this final failure for longer or shorter than the contract's retention
-- example  select fence from pgonce.claim('mail.send', 'mail-9', '\x5e88', '30 seconds') \gset
--          select pgonce.fail('mail.send', 'mail-9', '\x5e88', :fence, false, 'no_such_address', 'the address is unknown');
create or replace function pgonce.fail(
    p_scope text, p_key text, p_fingerprint bytea, p_fence bigint, p_retryable boolean,
    p_code text, p_message text, p_answer jsonb default null, p_tenant text default '',
    p_correlation text default null, p_owner text default null, p_keep interval default null
)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope;
    v_now      timestamptz;
    v_status   pgonce.status := case when p_retryable then 'failed_retryable' else 'failed_final' end;
    v_answer   jsonb;
    v_keep     interval;
    v_row      pgonce.intent;
    v_current  boolean;
    v_owner    text;
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, p_fingerprint);
    if coalesce(p_code, '') = '' or p_retryable is null then
        raise exception 'a failure needs a code and must say whether it is retryable' using errcode = '22023',
            hint = 'For example p_retryable => false, p_code => ''card_declined''.';
    end if;
    if octet_length(p_correlation) > 1000 then
        -- As pgonce.succeed does of a lease: that it failed is what counts.
        raise warning 'the correlation id was left out: it has more than 1000 bytes, scope %', p_scope;
        p_correlation := null;
    end if;
    v_contract := pgonce._contract_of(p_tenant, p_scope, true);
    if v_contract.storage = 'error' then
        v_contract.storage := 'answer';
    end if;
    v_answer := pgonce._answer_to_keep(v_contract, p_scope, p_answer, p_tenant, false);
    v_keep := case when not p_retryable then pgonce._retention_for(v_contract, p_keep) end;
    perform pgonce._force_durable_commit();
    if p_fence = 1 then
        -- The atomic attempt left nothing: this is the first record, or somebody was faster.
        v_now := pgonce.now();
        -- What the claim removed because its retention was over came back with the rollback.
        delete from pgonce.intent i
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" and i.expires_at <= v_now
           and (i.gone_at is not null or v_contract.after_expiry = 'rerun');
        insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence, first_at,
            last_at, expires_at, answer, failure_code, failure_message, correlation_id, owner)
        values (p_tenant, p_scope, p_key, p_fingerprint, v_status, 1, 1, v_now, v_now,
            v_now + v_keep, v_answer,
            left(p_code, 255), left(p_message, 4000), p_correlation, p_owner)
        on conflict (tenant, scope, key) do nothing;
    else
        select i.* into v_row from pgonce.intent i
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for update;
        v_now := pgonce.now();
        -- Before the statement, which on Citus may call no function of its own.
        v_current := pgonce._fence_is_current(v_row, p_fence, v_now, v_contract.stale);
        if v_row.status = 'processing' and v_row.fence <> p_fence then
            v_row.vanished_at := coalesce(v_row.vanished_at, v_now);
        end if;
        -- An attempt in one transaction is a new one: its row still names the one before it.
        v_owner := case when p_fence % 2 = 1 then pgonce._owner_or_session(p_owner) else coalesce(p_owner, v_row.owner) end;
        update pgonce.intent i
           set status = v_status, fence = p_fence, last_at = v_now, lease_until = null,
               attempts = i.attempts + (p_fence % 2)::integer,
               expires_at = v_now + v_keep,
               vanished_at = v_row.vanished_at,
               answer = v_answer, failure_code = left(p_code, 255),
               failure_message = left(p_message, 4000),
               correlation_id = coalesce(p_correlation, i.correlation_id),
               owner = v_owner
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
           and i.fingerprint = p_fingerprint and v_current;
    end if;
    if not found then
        perform pgonce._raise_not_holder('P4011', 'the failure was not recorded',
            p_scope, p_key, p_fingerprint, p_fence, p_tenant);
    end if;
end
$$;
