-- pgonce.ledger_statement(p_account, p_from, p_to, p_tenant): the entries of an account between two times, with
--          the opening and the closing balance.
-- answers  a row of kind opening, one of kind entry for each entry from p_from to before p_to, and one of kind
--          closing; balances count on the account's normal side
-- locks    nothing
-- writes   nothing
-- raises   22023 p_from is after p_to; P4072 unknown account
-- example  select pgonce.ledger_open('vault', 'EUR', 'debit');
--          select * from pgonce.ledger_statement('vault', '2026-01-01', '2026-02-01');
create or replace function pgonce.ledger_statement(p_account text, p_from timestamptz, p_to timestamptz, p_tenant text default '')
returns table (kind text, posted_at timestamptz, source text, operation text, debit numeric, credit numeric, balance numeric, memo jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text collate "C" := coalesce(p_tenant, '');
    v_account text collate "C" := p_account;
    v_sign   integer;
    v_open   numeric;
begin
    if (p_from <= p_to) is not true then
        raise exception 'a statement needs two times, the first before the second' using errcode = '22023',
            hint = 'For example ''2026-01-01'' and ''2026-02-01''.';
    end if;
    select case b.normal when 'debit' then 1 else -1 end into v_sign from pgonce.ledger_balance(v_account, null, v_tenant) b;
    v_open := pgonce._ledger_balance_at(v_tenant, v_account, p_from);
    return query select 'opening', p_from, null::text, null::text, null::numeric, null::numeric, v_sign * v_open, null::jsonb;
    return query
        select 'entry', e.posted_at, e.source::text, e.operation::text, case when e.amount > 0 then e.amount end,
               case when e.amount < 0 then - e.amount end,
               v_sign * (v_open + sum(e.amount) over (order by e.posted_at, e.shard, e.seq)), g.memo
          from pgonce.ledger_account a
          join pgonce.ledger_entry e on (e.tenant, e.account, e.shard) = (a.tenant, a.account, a.shard)
           and e.seq > pgonce._ledger_seq_at(a, p_from) and e.seq <= pgonce._ledger_seq_at(a, p_to)
          join pgonce.ledger_group g on (g.tenant, g.source, g.operation) = (e.tenant, e.source, e.operation)
         where a.tenant = v_tenant and a.account = v_account
         order by e.posted_at, e.shard, e.seq;
    return query select 'closing', p_to, null::text, null::text, null::numeric, null::numeric,
        v_sign * pgonce._ledger_balance_at(v_tenant, v_account, p_to), null::jsonb;
end
$$;
