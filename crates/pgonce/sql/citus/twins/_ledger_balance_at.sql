-- pgonce._ledger_balance_at on Citus: as ledger/_ledger_balance_at.sql.
create or replace function pgonce._ledger_balance_at(p_tenant text, p_account text, p_at timestamptz)
returns numeric
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_row     pgonce.ledger_account;
    v_seq     bigint;
    v_one     numeric;
    v_balance numeric := 0;
begin
    for v_row in select a.* from pgonce.ledger_account a where a.tenant = p_tenant and a.account = p_account collate "C" loop
        v_seq := pgonce._ledger_seq_at(v_row, p_at);
        select e.balance into v_one from pgonce.ledger_entry e
         where e.tenant = p_tenant and e.account = p_account collate "C" and e.shard = v_row.shard and e.seq = v_seq;
        v_balance := v_balance + coalesce(v_one, 0);
    end loop;
    return v_balance;
end
$$;
