-- pgonce._ledger_verify_tenant(p_tenant): on Citus, what pgonce.ledger_verify does for one tenant, on the server that has its ledger.
-- answers  as pgonce.ledger_verify
create or replace function pgonce._ledger_verify_tenant(p_tenant text)
returns table (tenant text, problem text, account text, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_last  pgonce.ledger_entry;
    v_row   pgonce.ledger_account;
    v_group pgonce.ledger_group;
    v_found record;
    v_account text;
    v_digest bytea;
begin
    for v_found in
        select e.*, g.digest from pgonce.ledger_entry e
          left join pgonce.ledger_group g on g.tenant = p_tenant and g.source = e.source and g.operation = e.operation
         where e.tenant = p_tenant order by e.account, e.shard, e.seq
    loop
        if (v_last.account, v_last.shard) is distinct from (v_found.account, v_found.shard) then
            v_account := v_found.account;
            select a.* into v_row from pgonce.ledger_account a
             where a.tenant = p_tenant and a.account = v_account collate "C" and a.shard = v_found.shard;
            v_last := null;
            v_last.account := v_found.account;
            v_last.shard := v_found.shard;
            v_last.seq := 0;
            v_last.balance := 0;
            v_last.hash := case when v_row.account is not null then pgonce._ledger_genesis(v_row) end;
        end if;
        if v_found.seq <> v_last.seq + 1 or v_found.posted_at < v_last.posted_at or v_found.balance <> v_last.balance + v_found.amount
           or v_found.hash is distinct from pgonce._ledger_hash(v_last.hash, v_found.digest, v_found.seq, v_found.line, v_found.posted_at,
               v_found.amount, v_found.balance)
        then
            return query select p_tenant, 'chain', v_found.account::text, format('entry %s of shard %s', v_found.seq, v_found.shard);
        end if;
        v_last.seq := v_found.seq;
        v_last.balance := v_found.balance;
        v_last.posted_at := v_found.posted_at;
        v_last.hash := v_found.hash;
    end loop;
    for v_group in select g.* from pgonce.ledger_group g where g.tenant = p_tenant loop
        v_digest := pgonce._ledger_digest(v_group.tenant, v_group.source, v_group.operation, v_group.pending, v_group.accounts,
            v_group.amounts, v_group.memo, v_group.reverses_source, v_group.reverses_operation);
        if v_group.digest <> v_digest then
            return query select p_tenant, 'group', null::text, format('%s %s', v_group.source, v_group.operation);
        end if;
    end loop;
    return query
        select p_tenant, 'entries', coalesce(l.account, e.account)::text,
               format('line %s of %s %s', coalesce(l.line, e.line), coalesce(l.source, e.source), coalesce(l.operation, e.operation))
          from (select g.source, g.operation, o.line, o.account, o.amount
                  from pgonce.ledger_group g
                  left join pgonce.ledger_pending p on p.tenant = p_tenant and p.source = g.source and p.operation = g.operation
                 cross join unnest(g.accounts, g.amounts) with ordinality as o (account, amount, line)
                 where g.tenant = p_tenant and (not g.pending or coalesce(p.state = 'posted', true))) l
          full join (select x.source, x.operation, x.line::bigint as line, x.account, x.amount from pgonce.ledger_entry x where x.tenant = p_tenant) e
            on e.source = l.source and e.operation = l.operation and e.line = l.line
         where l.account is distinct from e.account::text or l.amount is distinct from e.amount;
    return query
        select p_tenant, 'balance', h.account, format('shard %s says %s, its entries say %s', h.shard, h.cached, h.computed)
          from pgonce._ledger_heads(p_tenant) h where h.cached <> h.computed;
    return query
        select p_tenant, 'total', null::text, format('%s: %s', a.currency, sum(e.amount))
          from pgonce.ledger_entry e
          -- Not an inner join: PostgreSQL would give the tenant that both have in common the collation of its column.
          left join pgonce.ledger_account a on a.tenant = p_tenant and a.account = e.account and a.shard = e.shard
         where e.tenant = p_tenant
         group by a.currency having sum(e.amount) <> 0 and count(a.currency) > 0;
end
$$;
