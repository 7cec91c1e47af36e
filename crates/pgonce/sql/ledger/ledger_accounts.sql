-- pgonce.ledger_accounts: the accounts of the ledger, with their balances.
-- answers  a row per account; the balance counts on its normal side, available is what is left above the floor
--          after what pending groups hold; heads are the hashes of its last entries, one for each shard
-- note     a head that is written down in another place shows later that nothing before it was changed: its entry is
--          still in pgonce.ledger_entry
-- example  select account, currency, balance, available from pgonce.ledger_accounts order by account;
create or replace view pgonce.ledger_accounts as
select a.tenant, a.account, a.currency, a.normal, a.floor, a.shards, sum(x.balance) * a.sign as balance,
       sum(x.balance) * a.sign - sum(case when a.normal = 'debit' then x.held_credit else x.held_debit end) - a.floor as available,
       sum(x.held_debit) as pending_debit, sum(x.held_credit) as pending_credit, sum(x.entries)::bigint as entries,
       array_agg(encode(x.head, 'hex') order by x.shard) as heads, a.opened_at, a.closed_at
  from (select *, case when normal = 'debit' then 1 else -1 end as sign from pgonce.ledger_account where shard = 0) a
  join pgonce.ledger_account x on (x.tenant, x.account) = (a.tenant, a.account)
 group by a.tenant, a.account, a.currency, a.normal, a.floor, a.shards, a.sign, a.opened_at, a.closed_at;
