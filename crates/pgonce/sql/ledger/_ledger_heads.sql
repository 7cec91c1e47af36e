-- pgonce._ledger_heads(p_tenant, p_account): what the rows of accounts say, beside what their entries and pending groups
--          make.
-- answers  a row per shard of an account, with both as JSON
-- note     the last entry's running balance is the sum of all where pgonce._ledger_broken finds nothing
create or replace function pgonce._ledger_heads(p_tenant text, p_account text default null)
returns table (tenant text, account text, shard smallint, cached jsonb, computed jsonb)
language sql stable
begin atomic
    with held as (
        select a.tenant, a.account, a.shard, sum(greatest(l.amount, 0)) as debit,
               sum(greatest(- l.amount, 0)) as credit
          from pgonce.ledger_pending p
          join pgonce.ledger_group g on (g.tenant, g.source, g.operation) = (p.tenant, p.source, p.operation)
         cross join unnest(g.accounts, g.amounts) as l (account, amount)
          join pgonce.ledger_account a on a.tenant = g.tenant and a.account = l.account and a.shard = p.pick % a.shards
         where p.state = 'pending' and (p_tenant is null or p.tenant = p_tenant) and (p_account is null or l.account = p_account)
         group by a.tenant, a.account, a.shard)
    select a.tenant, a.account, a.shard,
           jsonb_build_object('balance', a.balance, 'entries', a.entries, 'head', encode(a.head, 'hex'),
               'held_debit', a.held_debit, 'held_credit', a.held_credit),
           jsonb_build_object('balance', coalesce(e.balance, 0), 'entries', coalesce(e.seq, 0),
               'head', encode(coalesce(e.hash, pgonce._ledger_genesis(a)), 'hex'),
               'held_debit', coalesce(h.debit, 0), 'held_credit', coalesce(h.credit, 0))
      from pgonce.ledger_account a
      left join held h on (h.tenant, h.account, h.shard) = (a.tenant, a.account, a.shard)
      left join lateral (
           select x.seq, x.balance, x.hash from pgonce.ledger_entry x
            where (x.tenant, x.account, x.shard) = (a.tenant, a.account, a.shard)
            order by x.seq desc limit 1) e on true
     where (p_tenant is null or a.tenant = p_tenant) and (p_account is null or a.account = p_account);
end;
