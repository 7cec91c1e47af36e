-- pgonce.ledger_settle(p_source, p_operation, p_state, p_fence, p_tenant): posts a pending group, or voids it.
-- answers  true: this call did; false: it was settled so before
-- locks    the pending group, then its accounts in the order of their names
-- writes   posted: its entries and balances, and what was held is free; voided: only that
-- raises   22023 p_state is neither 'posted' nor 'voided', or no fence; P4012 the group is pending under a
--          higher fence; P4078 there is no such pending group, or it was settled otherwise
-- example  select pgonce.ledger_open('bank', 'EUR', 'debit'), pgonce.ledger_open('card', 'EUR', 'debit');
--          select * from pgonce.ledger_post('shop', 'capture-1',
--              '[{"account": "bank", "debit": 100}, {"account": "card", "credit": 100}]', p_fence => 1);
--          select pgonce.ledger_settle('shop', 'capture-1', 'posted', 1);
create or replace function pgonce.ledger_settle(p_source text, p_operation text, p_state text, p_fence bigint,
    p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant  text collate "default" := coalesce(p_tenant, '');
    v_now     timestamptz;
    v_pending pgonce.ledger_pending;
    v_group   pgonce.ledger_group;
begin
    if (p_state collate "C" in ('posted', 'voided')) is not true or p_fence is null then
        raise exception 'a pending group is settled as posted or voided, under its fence' using errcode = '22023',
            hint = 'Pass the fence that it was recorded with.';
    end if;
    perform pgonce._force_durable_commit();
    select p.* into v_pending from pgonce.ledger_pending p
     where p.tenant = v_tenant and p.source = p_source collate "C"
       and p.operation = p_operation collate "C" for no key update;
    if v_pending.tenant is null then
        raise exception 'no group of operation "%" of source "%" is pending', p_operation, p_source using errcode = 'P4078',
            hint = 'Record it first, with a fence: pgonce.ledger_post.';
    elsif v_pending.state = p_state collate "C" then
        return false;
    elsif v_pending.state <> 'pending' then
        raise exception 'operation "%" of source "%" was % before', p_operation, p_source, v_pending.state using errcode = 'P4078',
            hint = 'A posted group can be reversed; a voided one is recorded again under another operation.';
    elsif p_fence < v_pending.fence then
        raise exception 'a newer attempt holds operation "%" of source "%"', p_operation, p_source using errcode = 'P4012',
            detail = format('Fence %s is behind %s.', p_fence, v_pending.fence), hint = 'Stop: the newer attempt settles it.';
    end if;
    select g.* into strict v_group from pgonce.ledger_group g
     where g.tenant = v_tenant and g.source = v_pending.source and g.operation = v_pending.operation;
    perform pgonce._ledger_move(case p_state collate "C" when 'posted' then 1 else 0 end, -1, v_tenant, v_group.source,
        v_group.operation, v_group.digest, v_group.accounts, v_group.amounts, null, v_pending.pick);
    v_now := pgonce.now();
    update pgonce.ledger_pending p set state = p_state, settled_at = v_now, fence = p_fence
     where p.tenant = v_tenant and p.source = v_pending.source and p.operation = v_pending.operation;
    return true;
end
$$;
