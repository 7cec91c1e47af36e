-- pgonce._ledger_broken(p_tenant, p_account): entries that are not what was once posted.
-- answers  a row for each entry whose position, time, running balance or hash does not follow from the entry
--          before it, and one for the first that is missing at the end
create or replace function pgonce._ledger_broken(p_tenant text, p_account text default null)
returns table (tenant text, account text, shard smallint, seq bigint)
language sql stable
begin atomic
    select x.tenant, x.account, x.shard, x.seq
      from (select e.*, lag(e.seq, 1, 0::bigint) over w as last_seq, lag(e.balance, 1, 0::numeric) over w as last_balance,
                   lag(e.posted_at) over w as last_at, lag(e.hash) over w as last_hash
              from pgonce.ledger_entry e
             where (p_tenant is null or e.tenant = p_tenant) and (p_account is null or e.account = p_account)
            window w as (partition by e.tenant, e.account, e.shard order by e.seq)) x
      left join pgonce.ledger_account a on (a.tenant, a.account, a.shard) = (x.tenant, x.account, x.shard)
      left join pgonce.ledger_group g on (g.tenant, g.source, g.operation) = (x.tenant, x.source, x.operation)
     where x.seq <> x.last_seq + 1 or x.posted_at < x.last_at or x.balance <> x.last_balance + x.amount
        or x.hash is distinct from pgonce._ledger_hash(coalesce(x.last_hash, pgonce._ledger_genesis(a)), g.digest, x.seq, x.line,
               x.posted_at, x.amount, x.balance)
    union all
    select a.tenant, a.account, a.shard, e.seq + 1
      from pgonce.ledger_account a
     cross join lateral (
           select coalesce(max(x.seq), 0) as seq from pgonce.ledger_entry x
            where (x.tenant, x.account, x.shard) = (a.tenant, a.account, a.shard)) e
     where e.seq < a.entries and (p_tenant is null or a.tenant = p_tenant) and (p_account is null or a.account = p_account);
end;
