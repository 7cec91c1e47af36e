-- pgonce._ledger_record on Citus: as ledger/_ledger_record.sql; what a statement needs is computed before it.
create or replace function pgonce._ledger_record(p_tenant text, p_source text, p_operation text, p_accounts text[],
    p_amounts numeric[], p_currencies text[], p_memo jsonb, p_fence bigint, p_reverses_source text, p_reverses_operation text,
    out made_now boolean, out state text, out recorded_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    -- Not in the collation of other arguments: Citus would take it for another tenant.
    v_tenant  text collate "default" := p_tenant;
    v_digest  bytea := pgonce._ledger_digest(p_tenant, p_source, p_operation, p_fence is not null, p_accounts, p_amounts, p_memo,
        p_reverses_source, p_reverses_operation);
    v_now     timestamptz := pgonce.now();
    v_pending boolean := p_fence is not null;
    v_pick    integer := pg_backend_pid();
    v_there   bytea;
    v_other   boolean := false;
    v_name    text;
    v_named   text;
    v_state   text;
    v_fence   bigint;
begin
    if (octet_length(p_source) between 1 and 255) is not true or (octet_length(p_operation) between 1 and 255) is not true then
        raise exception 'a group needs the names of a source and an operation, each of 1 to 255 bytes' using errcode = '22023',
            hint = 'For example ''shop'' and ''order-7''.';
    end if;
    -- On this server, which commits it.
    perform pgonce._force_durable_commit();
    insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts, memo,
        reverses_source, reverses_operation)
    values (v_tenant, p_source, p_operation, v_now, v_pending, v_digest, p_accounts, p_amounts, p_memo, p_reverses_source,
        p_reverses_operation)
    -- Whatever the index: another reversal of the group that an old snapshot does not show is 40001, and not a unique violation.
    on conflict do nothing;
    made_now := found;
    state := 'posted';
    recorded_at := v_now;
    if made_now and not v_pending then
        perform pgonce._ledger_move(1, 0, v_tenant, p_source, p_operation, v_digest, p_accounts, p_amounts, p_currencies, v_pick);
        return;
    elsif made_now then
        state := 'pending';
        insert into pgonce.ledger_pending (tenant, source, operation, fence, pick, state)
        values (v_tenant, p_source, p_operation, p_fence, v_pick, 'pending');
        perform pgonce._ledger_move(0, 1, v_tenant, p_source, p_operation, v_digest, p_accounts, p_amounts, p_currencies, v_pick);
        return;
    end if;
    select g.digest, g.recorded_at into strict v_there, v_now from pgonce.ledger_group g
     where g.tenant = v_tenant and g.source = p_source collate "C" and g.operation = p_operation collate "C";
    recorded_at := v_now;
    -- The digest leaves out the currencies that entries name: they only say what the accounts are in.
    for v_line in 1 .. coalesce(cardinality(p_currencies), 0) loop
        continue when v_other or p_currencies[v_line] is null;
        v_name := p_accounts[v_line];
        v_named := p_currencies[v_line];
        perform 1 from pgonce.ledger_account a
          where a.tenant = v_tenant and a.account = v_name collate "C" and a.currency <> v_named collate "C";
        v_other := found;
    end loop;
    if v_there <> v_digest or v_other then
        raise exception 'operation "%" of source "%" was recorded before with other content', p_operation, p_source
            using errcode = 'P4070', hint = 'Send the group as it was, or give a new operation its own name.';
    elsif not v_pending then
        return;
    end if;
    select p.state, p.fence into strict v_state, v_fence from pgonce.ledger_pending p
     where p.tenant = v_tenant and p.source = p_source collate "C" and p.operation = p_operation collate "C" for no key update;
    state := v_state;
    if p_fence < v_fence then
        raise exception 'a newer attempt holds operation "%" of source "%"', p_operation, p_source using errcode = 'P4012',
            detail = format('Fence %s is behind %s.', p_fence, v_fence), hint = 'Stop: the newer attempt settles it.';
    elsif p_fence > v_fence and v_state = 'pending' then
        update pgonce.ledger_pending p set fence = p_fence
         where p.tenant = v_tenant and p.source = p_source collate "C" and p.operation = p_operation collate "C";
    end if;
end
$$;
