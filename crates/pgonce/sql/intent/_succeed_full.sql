-- pgonce._succeed_full(...): every success that pgonce.succeed cannot record with one statement.
-- answers  nothing
-- locks    the intent's row
-- writes   as pgonce.succeed
-- raises   as pgonce.succeed
create or replace function pgonce._succeed_full(p_scope text, p_key text, p_fingerprint bytea, p_fence bigint,
    p_answer jsonb, p_ref_type text, p_ref_id text, p_tenant text, p_correlation text, p_owner text, p_keep interval)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope;
    v_row      pgonce.intent;
    v_now      timestamptz;
    v_current  boolean;
    v_keep     interval;
    v_answer   jsonb;
    v_owner    text;
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, p_fingerprint);
    if p_fence % 2 = 1 and not pgonce._is_open_attempt(p_tenant, p_scope, p_key) then
        perform pgonce._raise_transaction_ended();
    end if;
    if greatest(octet_length(p_ref_id), octet_length(p_correlation)) > 1000 then
        if p_fence % 2 = 1 then
            raise exception 'the reference or the correlation id has % bytes; at most 1000',
                greatest(octet_length(p_ref_id), octet_length(p_correlation)) using errcode = '22023',
                detail = format('scope %s.', p_scope), hint = 'Refer to what was made by its key, or put the text into the answer.';
        end if;
        -- What is done is recorded: it may have happened outside, and would happen again.
        raise warning 'the reference and the correlation id were left out: one has more than 1000 bytes, scope %', p_scope;
        p_ref_type := null;
        p_ref_id := null;
        p_correlation := null;
    end if;
    -- A lease was begun.
    v_contract := pgonce._contract_of(p_tenant, p_scope, p_fence % 2 = 0);
    perform pgonce._force_durable_commit();
    -- Every function is called before the statement: on Citus a statement may call none of them.
    v_keep := pgonce._retention_for(v_contract, p_keep);
    if v_contract.storage not in ('answer', 'reference') then
        p_ref_type := null;
        p_ref_id := null;
    end if;
    if p_fence = 1 then
        v_answer := pgonce._answer_to_keep(v_contract, p_scope, p_answer, p_tenant, true);
        v_now := pgonce.now();
        insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer,
            ref_type, ref_id, correlation_id, owner)
        values (1, v_now, v_now + v_keep, 1, 'succeeded', p_tenant, p_scope, p_key, p_fingerprint, v_answer,
            p_ref_type, p_ref_id, p_correlation, p_owner)
        on conflict (tenant, scope, key) do nothing;
    else
        -- The row first, the clock after: a wait for the row must not shorten its retention.
        select i.* into v_row from pgonce.intent i
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C" for update;
        v_now := pgonce.now();
        v_current := pgonce._fence_is_current(v_row, p_fence, v_now, v_contract.stale);
        if v_current then
            v_answer := pgonce._answer_to_keep(v_contract, p_scope, p_answer, p_tenant, false);
        end if;
        -- An attempt in one transaction is a new one: its row still names the one before it.
        v_owner := case when p_fence % 2 = 1 then pgonce._owner_or_session(p_owner) else coalesce(p_owner, v_row.owner) end;
        update pgonce.intent i
           set status = 'succeeded', fence = p_fence, last_at = v_now, lease_until = null,
               attempts = i.attempts + (p_fence % 2)::integer, expires_at = v_now + v_keep, answer = v_answer,
               ref_type = p_ref_type, ref_id = p_ref_id,
               correlation_id = coalesce(p_correlation, i.correlation_id),
               owner = v_owner,
               failure_code = null, failure_message = null
         where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
           and i.fingerprint = p_fingerprint and v_current;
    end if;
    if not found then
        perform pgonce._raise_not_holder('P4010', 'the success was not recorded',
            p_scope, p_key, p_fingerprint, p_fence, p_tenant);
    end if;
end
$$;
