-- pgonce._ledger_record(p_tenant, p_source, p_operation, p_accounts, p_amounts, p_currencies, p_memo, p_fence,
--          p_reverses_source, p_reverses_operation): records a group once, and applies it.
-- answers  made_now true, this call did; false, it was recorded before; and its state
-- locks    what an insert of the group locks, then its accounts
-- writes   the group, and what pgonce._ledger_move writes; a pending one's fence where it is higher
-- raises   as pgonce.ledger_post
create or replace function pgonce._ledger_record(p_tenant text, p_source text, p_operation text, p_accounts text[],
    p_amounts numeric[], p_currencies text[], p_memo jsonb, p_fence bigint, p_reverses_source text, p_reverses_operation text,
    out made_now boolean, out state text, out recorded_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_digest bytea := pgonce._ledger_digest(p_tenant, p_source, p_operation, p_fence is not null, p_accounts, p_amounts, p_memo,
        p_reverses_source, p_reverses_operation);
    v_there  bytea;
    v_fence  bigint;
begin
    if (octet_length(p_source) between 1 and 255) is not true or (octet_length(p_operation) between 1 and 255) is not true then
        raise exception 'a group needs the names of a source and an operation, each of 1 to 255 bytes' using errcode = '22023',
            hint = 'For example ''shop'' and ''order-7''.';
    end if;
    perform pgonce._force_durable_commit();
    recorded_at := pgonce.now();
    insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts, memo,
        reverses_source, reverses_operation)
    values (p_tenant, p_source, p_operation, _ledger_record.recorded_at, p_fence is not null, v_digest, p_accounts, p_amounts, p_memo,
        p_reverses_source, p_reverses_operation)
    -- Whatever the index: another reversal of the group that an old snapshot does not show is 40001, and not a unique violation.
    on conflict do nothing;
    made_now := found;
    state := 'posted';
    if made_now and p_fence is null then
        perform pgonce._ledger_move(1, 0, p_tenant, p_source, p_operation, v_digest, p_accounts, p_amounts, p_currencies,
            pg_backend_pid());
        return;
    elsif made_now then
        state := 'pending';
        insert into pgonce.ledger_pending (tenant, source, operation, fence, pick, state)
        values (p_tenant, p_source, p_operation, p_fence, pg_backend_pid(), 'pending');
        perform pgonce._ledger_move(0, 1, p_tenant, p_source, p_operation, v_digest, p_accounts, p_amounts, p_currencies,
            pg_backend_pid());
        return;
    end if;
    select g.digest, g.recorded_at into strict v_there, recorded_at from pgonce.ledger_group g
     where g.tenant = p_tenant and g.source = p_source and g.operation = p_operation;
    -- The digest leaves out the currencies that entries name: they only say what the accounts are in.
    if v_there <> v_digest or exists (
        select from unnest(p_accounts, p_currencies) as u (account, named)
          join pgonce.ledger_account a on a.tenant = p_tenant and a.account = u.account collate "C" and a.currency <> u.named collate "C")
    then
        raise exception 'operation "%" of source "%" was recorded before with other content', p_operation, p_source
            using errcode = 'P4070', hint = 'Send the group as it was, or give a new operation its own name.';
    elsif p_fence is null then
        return;
    end if;
    select p.state, p.fence into strict state, v_fence from pgonce.ledger_pending p
     where p.tenant = p_tenant and p.source = p_source and p.operation = p_operation for no key update;
    if p_fence < v_fence then
        raise exception 'a newer attempt holds operation "%" of source "%"', p_operation, p_source using errcode = 'P4012',
            detail = format('Fence %s is behind %s.', p_fence, v_fence), hint = 'Stop: the newer attempt settles it.';
    elsif p_fence > v_fence and _ledger_record.state = 'pending' then
        update pgonce.ledger_pending p set fence = p_fence
         where p.tenant = p_tenant and p.source = p_source and p.operation = p_operation;
    end if;
end
$$;
