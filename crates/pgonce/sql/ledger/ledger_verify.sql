-- pgonce.ledger_verify(p_tenant): recomputes the whole ledger from its entries, in one snapshot.
-- answers  a row for each thing that is wrong; none where all is well. problem: chain, an entry is not what was
--          posted, or is missing at the end; group, a group is not what was recorded; entries, a group and its entries differ; balance,
--          the row of an account differs from its entries and pending groups; total, debits and credits of a
--          currency differ
-- locks    nothing
-- writes   nothing
-- raises   nothing
-- note     reads every entry of the tenant; null: of all tenants. pgonce.ledger_repair fixes what is of
--          problem balance; all else means that somebody changed the tables by hand
-- example  select * from pgonce.ledger_verify();
create or replace function pgonce.ledger_verify(p_tenant text default null)
returns table (tenant text, problem text, account text, detail text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select b.tenant, 'chain', b.account, format('entry %s of shard %s', b.seq, b.shard) from pgonce._ledger_broken(p_tenant) b;
    return query
        select g.tenant::text, 'group', null::text, format('%s %s', g.source, g.operation) from pgonce.ledger_group g
         where (p_tenant is null or g.tenant = p_tenant collate "C") and g.digest <> pgonce._ledger_digest(g.tenant, g.source, g.operation,
               g.pending, g.accounts, g.amounts, g.memo, g.reverses_source, g.reverses_operation);
    return query
        select coalesce(l.tenant, e.tenant)::text, 'entries', coalesce(l.account, e.account)::text,
               format('line %s of %s %s', coalesce(l.line, e.line), coalesce(l.source, e.source), coalesce(l.operation, e.operation))
          from (select g.tenant, g.source, g.operation, o.line, o.account, o.amount
                  from pgonce.ledger_group g
                  left join pgonce.ledger_pending p on (p.tenant, p.source, p.operation) = (g.tenant, g.source, g.operation)
                 cross join unnest(g.accounts, g.amounts) with ordinality as o (account, amount, line)
                 where (p_tenant is null or g.tenant = p_tenant collate "C")
                   and case when g.pending then coalesce(p.state = 'posted', true) else true end) l
          full join (select * from pgonce.ledger_entry x where p_tenant is null or x.tenant = p_tenant collate "C") e
            on (e.tenant, e.source, e.operation, e.line::bigint) = (l.tenant, l.source, l.operation, l.line)
         where (l.account, l.amount) is distinct from (e.account::text, e.amount);
    return query
        select h.tenant, 'balance', h.account, format('shard %s says %s, its entries say %s', h.shard, h.cached, h.computed)
          from pgonce._ledger_heads(p_tenant) h where h.cached <> h.computed;
    return query
        select a.tenant::text, 'total', null::text, format('%s: %s', a.currency, sum(e.amount))
          from pgonce.ledger_entry e
          join pgonce.ledger_account a on (a.tenant, a.account, a.shard) = (e.tenant, e.account, e.shard)
         where p_tenant is null or e.tenant = p_tenant collate "C"
         group by a.tenant, a.currency having sum(e.amount) <> 0;
end
$$;
