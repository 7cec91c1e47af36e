-- pgonce.ledger_statement on Citus: as ledger/ledger_statement.sql, delegated.
create or replace function pgonce.ledger_statement(p_account text, p_from timestamptz, p_to timestamptz, p_tenant text default '')
returns table (kind text, posted_at timestamptz, source text, operation text, debit numeric, credit numeric, balance numeric, memo jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant  text collate "default" := coalesce(p_tenant, '');
    v_row     pgonce.ledger_account;
    v_entry   record;
    v_sign    integer;
    v_balance numeric;
    v_shards  smallint[] := '{}';
    v_after   bigint[] := '{}';
    v_upto    bigint[] := '{}';
begin
    if (p_from <= p_to) is not true then
        raise exception 'a statement needs two times, the first before the second' using errcode = '22023',
            hint = 'For example ''2026-01-01'' and ''2026-02-01''.';
    end if;
    for v_row in select a.* from pgonce.ledger_account a where a.tenant = v_tenant and a.account = p_account collate "C" loop
        v_sign := case when v_row.normal = 'debit' then 1 else -1 end;
        v_shards := v_shards || v_row.shard;
        v_after := v_after || pgonce._ledger_seq_at(v_row, p_from);
        v_upto := v_upto || pgonce._ledger_seq_at(v_row, p_to);
    end loop;
    if v_sign is null then
        raise exception 'there is no account "%"', p_account using errcode = 'P4072', hint = 'Look in pgonce.ledger_accounts.';
    end if;
    v_balance := pgonce._ledger_balance_at(v_tenant, p_account, p_from);
    return query select 'opening', p_from, null::text, null::text, null::numeric, null::numeric, v_sign * v_balance, null::jsonb;
    for v_entry in
        select e.posted_at, e.source, e.operation, e.amount, g.memo
          from unnest(v_shards, v_after, v_upto) as s (shard, after, upto)
          join pgonce.ledger_entry e on e.tenant = v_tenant and e.account = p_account collate "C" and e.shard = s.shard
           and e.seq > s.after and e.seq <= s.upto
          -- Not an inner join: PostgreSQL would give the tenant that both have in common the collation of its column.
          left join pgonce.ledger_group g on g.tenant = v_tenant and g.source = e.source and g.operation = e.operation
         order by e.posted_at, e.shard, e.seq
    loop
        v_balance := v_balance + v_entry.amount;
        return query select 'entry', v_entry.posted_at, v_entry.source::text, v_entry.operation::text,
            case when v_entry.amount > 0 then v_entry.amount end, case when v_entry.amount < 0 then - v_entry.amount end,
            v_sign * v_balance, v_entry.memo;
    end loop;
    return query select 'closing', p_to, null::text, null::text, null::numeric, null::numeric,
        v_sign * pgonce._ledger_balance_at(v_tenant, p_account, p_to), null::jsonb;
end
$$;
