-- pgonce._ledger_balance_at(p_tenant, p_account, p_at): what an account had before a time.
-- answers  debits less credits
create or replace function pgonce._ledger_balance_at(p_tenant text, p_account text, p_at timestamptz)
returns numeric
language sql stable
begin atomic
    select coalesce(sum(e.balance), 0)
      from pgonce.ledger_account a
      join pgonce.ledger_entry e on (e.tenant, e.account, e.shard) = (a.tenant, a.account, a.shard)
       and e.seq = pgonce._ledger_seq_at(a, p_at)
     where a.tenant = p_tenant and a.account = p_account;
end;
