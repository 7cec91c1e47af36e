-- pgonce._ledger_heads on Citus: as ledger/_ledger_heads.sql, for one tenant.
create or replace function pgonce._ledger_heads(p_tenant text, p_account text default null)
returns table (tenant text, account text, shard smallint, cached jsonb, computed jsonb)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v      record;
    v_row  pgonce.ledger_account;
    v_hash bytea;
begin
    for v in
        select a.account, a.shard, a.shards, a.currency, a.normal, a.opened_at, a.balance, a.entries, a.head, a.held_debit, a.held_credit,
               e.seq as last_seq, e.balance as last_balance, e.hash as last_hash, coalesce(h.debit, 0) as debit, coalesce(h.credit, 0) as credit
          from pgonce.ledger_account a
          left join lateral (
               select x.seq, x.balance, x.hash from pgonce.ledger_entry x
                where x.tenant = p_tenant and x.account = a.account and x.shard = a.shard
                order by x.seq desc limit 1) e on true
          left join (
               select b.account, b.shard, sum(greatest(l.amount, 0)) as debit, sum(greatest(- l.amount, 0)) as credit
                 from pgonce.ledger_pending p
                 join pgonce.ledger_group g on g.tenant = p_tenant and g.source = p.source and g.operation = p.operation
                cross join unnest(g.accounts, g.amounts) as l (account, amount)
                 join pgonce.ledger_account b on b.tenant = p_tenant and b.account = l.account and b.shard = p.pick % b.shards
                where p.tenant = p_tenant and p.state = 'pending'
                group by b.account, b.shard) h on h.account = a.account and h.shard = a.shard
         where a.tenant = p_tenant and (p_account is null or a.account = p_account)
    loop
        v_hash := v.last_hash;
        if v_hash is null then
            v_row.tenant := p_tenant;
            v_row.account := v.account;
            v_row.shard := v.shard;
            v_row.shards := v.shards;
            v_row.currency := v.currency;
            v_row.normal := v.normal;
            v_row.opened_at := v.opened_at;
            v_hash := pgonce._ledger_genesis(v_row);
        end if;
        return query select p_tenant, v.account::text, v.shard,
            jsonb_build_object('balance', v.balance, 'entries', v.entries, 'head', encode(v.head, 'hex'),
                'held_debit', v.held_debit, 'held_credit', v.held_credit),
            jsonb_build_object('balance', coalesce(v.last_balance, 0), 'entries', coalesce(v.last_seq, 0),
                'head', encode(v_hash, 'hex'), 'held_debit', v.debit, 'held_credit', v.credit);
    end loop;
end
$$;
