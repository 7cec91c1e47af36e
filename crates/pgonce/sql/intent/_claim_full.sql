-- pgonce._claim_full(...): every claim that pgonce.claim cannot answer with one look.
-- answers  as pgonce.claim
-- locks    the intent's advisory lock, then its row; both until the end of the transaction
-- writes   leased mode: the row, 'processing' under a new fence. Atomic mode: nothing, but a
--          record past its retention is removed where the contract says so, and where the contract
--          has a commit guard, a row of pgonce.open_claim
-- raises   P4000 P4001 P4002 P4003 P4031 P4044 P4110 P4111 22023
create or replace function pgonce._claim_full(p_scope text, p_key text, p_fingerprint bytea,
    p_lease interval, p_owner text, p_tenant text, p_correlation text)
returns pgonce.claimed
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row      pgonce.intent;
    v_contract pgonce.scope;
    v_now      timestamptz;
    v_fence    bigint;
    v_locked   boolean := false;
    v_exists   boolean;
    v_owner    text := pgonce._owner_or_session(p_owner);
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, p_fingerprint, p_lease);
    v_contract := pgonce._contract(p_tenant, p_scope);
    perform pgonce._force_durable_commit();

    -- A row may vanish (purge) or appear (another claim) between two looks: then look again.
    for v_look in 1 .. 10 loop
        if v_locked then
            select i.* into v_row from pgonce.intent i
             where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
               for update skip locked;
            if not found and exists (select from pgonce.intent i
                 where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C") then
                -- The holder of a lease is inside its guarded write, a purge or an operator's act is not committed: however long
                -- that takes.
                return pgonce._busy(interval '100 milliseconds', 1);
            end if;
        else
            select i.* into v_row from pgonce.intent i
             where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
        end if;
        v_exists := v_row.scope is not null;
        v_now := pgonce.now();

        if v_exists and v_row.expires_at <= v_now
           and (v_row.gone_at is not null or v_contract.after_expiry = 'rerun') then
            -- Past its retention, and the contract says that the key is free again.
            if not v_locked then
                v_locked := pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key));
                if not v_locked then
                    return pgonce._busy(interval '100 milliseconds', v_row.attempts);
                end if;
                continue;
            end if;
            delete from pgonce.intent i
             where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
            v_exists := false;
        elsif v_exists and v_row.expires_at is not null
              and (v_row.gone_at is not null or v_row.expires_at <= v_now) then
            raise exception 'the answer to this key is gone' using errcode = 'P4031',
                detail = format('scope %s: the intent finished, and its retention ended at %s.',
                    p_scope, coalesce(v_row.gone_at, v_row.expires_at)),
                hint = 'It happened once and will not happen again under this key. For a new request use a new key.';
        elsif v_exists and v_row.fingerprint <> p_fingerprint then
            raise exception 'the key was used before with another request' using errcode = 'P4002',
                detail = format('scope %s, first attempt at %s, status %s.', p_scope, v_row.first_at, v_row.status),
                hint = 'Send the same request to get its answer, or use a new key for a new request.';
        end if;

        if v_exists and v_row.status = 'succeeded' then
            return row('replay', v_row.fence, v_row.answer, v_row.ref_type, v_row.ref_id,
                null, null, null, v_row.attempts)::pgonce.claimed;
        elsif v_exists and v_row.status = 'failed_final' then
            return row('refused', v_row.fence, v_row.answer, v_row.ref_type, v_row.ref_id,
                v_row.failure_code, v_row.failure_message, null, v_row.attempts)::pgonce.claimed;
        elsif v_exists and v_row.status = 'processing' and v_row.lease_until > v_now then
            return pgonce._busy(v_row.lease_until - v_now, v_row.attempts);
        end if;

        -- From here on somebody is to do the work: one at a time, and where it can be recorded.
        if current_setting('transaction_read_only') = 'on' then
            raise exception 'the intent is not finished, and nothing can be written here' using errcode = '25006',
                detail = 'The server is a standby, or the transaction is read-only.',
                hint = 'Claim on the primary, in a transaction that can write.';
        end if;
        if not v_locked then
            perform pgonce._scope_is_allowed(p_tenant, p_scope, p_key);  -- raises where its home is another region
            v_locked := pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, p_scope, p_key));
            if not v_locked then
                return pgonce._busy(interval '100 milliseconds', case when v_exists then v_row.attempts else 1 end);
            end if;
            continue;  -- what was seen before the lock may be stale
        end if;

        -- Claimed twice in one transaction: the lock does not keep a transaction from itself.
        if p_lease is null and pgonce._open_attempt(p_tenant, p_scope, p_key,
               case when v_exists then v_row.first_at end) is null then
            return pgonce._busy(interval '100 milliseconds', case when v_exists then v_row.attempts else 1 end);
        end if;
        if not v_exists and p_lease is null then
            if v_contract.commit_guard then
                perform pgonce._guard_claim(p_tenant, p_scope, p_key);
            end if;
            return row('fresh', 1, null, null, null, null, null, null, 1)::pgonce.claimed;
        elsif not v_exists then
            if v_contract.max_keys is not null then
                perform pgonce._answer_to_keep(v_contract, p_scope, null, p_tenant, true);
            end if;
            v_fence := pgonce._next_fence(null, true, p_tenant);
            insert into pgonce.intent (tenant, scope, key, fingerprint, status, attempts, fence,
                first_at, last_at, lease_until, owner, correlation_id)
            values (p_tenant, p_scope, p_key, p_fingerprint, 'processing', 1, v_fence,
                v_now, v_now, v_now + p_lease, v_owner, p_correlation)
            on conflict (tenant, scope, key) do nothing;
            if found then
                return row('fresh', v_fence, null, null, null, null, null, null, 1)::pgonce.claimed;
            end if;
            continue;
        end if;

        if (v_row.status = 'processing' or v_row.vanished_at is not null) and (v_contract.stale = 'hold' or v_contract.probe is not null) then
            -- An operator decides; or recovery, which asks the probe first.
            return pgonce._busy(case when v_contract.probe is null then interval '1 minute' else interval '5 seconds' end, v_row.attempts);
        elsif (v_row.status = 'processing' or v_row.vanished_at is not null) and v_contract.stale = 'refuse' then
            -- An odd one: this is no lease. It also says that there is a history to forget.
            v_fence := case v_row.status when 'processing' then v_row.fence else pgonce._next_fence(v_row.fence, false, p_tenant) end;
            update pgonce.intent i
               set status = 'failed_final', fence = v_fence, lease_until = null, last_at = v_now,
                   expires_at = v_now + v_contract.retention, failure_code = 'abandoned',
                   failure_message = 'the holder vanished; whether its effect happened is not known'
             where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
            returning i.* into strict v_row;
            return row('refused', v_row.fence, null, null, null, v_row.failure_code,
                v_row.failure_message, null, v_row.attempts)::pgonce.claimed;
        end if;

        v_fence := pgonce._next_fence(v_row.fence, p_lease is not null, p_tenant);
        if v_row.status = 'processing' then
            v_row.vanished_at := coalesce(v_row.vanished_at, v_now);
        end if;
        if p_lease is not null then
            update pgonce.intent i
               set status = 'processing', fence = v_fence, attempts = i.attempts + 1, last_at = v_now,
                   vanished_at = v_row.vanished_at,
                   lease_until = v_now + p_lease, owner = v_owner,
                   correlation_id = coalesce(p_correlation, i.correlation_id),
                   failure_code = null, failure_message = null, answer = null
             where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
        elsif v_contract.commit_guard then
            perform pgonce._guard_claim(p_tenant, p_scope, p_key);
        end if;
        -- A holder that took over and then failed or gave up has not found out what the one before did outside.
        return row(case when v_row.vanished_at is not null then 'takeover' else 'retry' end, v_fence,
            null, null, null, v_row.failure_code, v_row.failure_message, null,
            v_row.attempts + 1)::pgonce.claimed;
    end loop;

    raise exception 'the intent kept changing under ten looks' using errcode = 'P4099',
        detail = format('scope %s', p_scope), hint = 'Try again. If it persists, please report it.';
end
$$;
