-- pgonce.ledger_balance(p_account, p_at, p_tenant): the balance of an account, now or as it was.
-- answers  one row; the balance counts on the account's normal side. available is what is left above the floor
--          after what pending groups hold, and null for a past time or without a floor
-- locks    nothing
-- writes   nothing
-- raises   P4072 unknown account
-- note     as of p_at counts what was posted before it. A transaction that is still open may add to the most
--          recent past
-- example  select pgonce.ledger_open('purse', 'EUR', 'debit');
--          select * from pgonce.ledger_balance('purse');
--          select balance from pgonce.ledger_balance('purse', '2026-01-31');
create or replace function pgonce.ledger_balance(p_account text, p_at timestamptz default null, p_tenant text default '')
returns table (currency text, normal text, balance numeric, available numeric, pending_debit numeric, pending_credit numeric)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    select a.currency, a.normal, a.balance, a.available, a.pending_debit, a.pending_credit
      into currency, normal, balance, available, pending_debit, pending_credit
      from pgonce.ledger_accounts a where a.tenant = coalesce(p_tenant, '') collate "C" and a.account = p_account collate "C";
    if currency is null then
        raise exception 'there is no account "%"', p_account using errcode = 'P4072', hint = 'Look in pgonce.ledger_accounts.';
    elsif p_at is not null then
        balance := pgonce._ledger_balance_at(coalesce(p_tenant, ''), p_account, p_at) * case normal collate "C" when 'debit' then 1 else -1 end;
        available := null;
        pending_debit := null;
        pending_credit := null;
    end if;
    return next;
end
$$;
