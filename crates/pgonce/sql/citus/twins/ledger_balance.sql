-- pgonce.ledger_balance on Citus: as ledger/ledger_balance.sql, delegated.
create or replace function pgonce.ledger_balance(p_account text, p_at timestamptz default null, p_tenant text default '')
returns table (currency text, normal text, balance numeric, available numeric, pending_debit numeric, pending_credit numeric)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant text collate "default" := coalesce(p_tenant, '');
    v        record;
    v_sign   integer;
begin
    select min(a.currency) as currency, min(a.normal) as normal, min(a.floor) as floor, sum(a.balance) as balance,
           sum(a.held_debit) as debit, sum(a.held_credit) as credit
      into v from pgonce.ledger_account a where a.tenant = v_tenant and a.account = p_account collate "C";
    if v.currency is null then
        raise exception 'there is no account "%"', p_account using errcode = 'P4072', hint = 'Look in pgonce.ledger_accounts.';
    end if;
    v_sign := case when v.normal = 'debit' then 1 else -1 end;
    currency := v.currency;
    normal := v.normal;
    if p_at is not null then
        balance := pgonce._ledger_balance_at(v_tenant, p_account, p_at) * v_sign;
    else
        balance := v.balance * v_sign;
        available := v.balance * v_sign - case when v.normal = 'debit' then v.credit else v.debit end - v.floor;
        pending_debit := v.debit;
        pending_credit := v.credit;
    end if;
    return next;
end
$$;
