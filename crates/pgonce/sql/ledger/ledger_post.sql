-- pgonce.ledger_post(p_source, p_operation, p_entries, p_memo, p_fence, p_tenant): records a balanced group of
--          entries once.
-- answers  one row: made_now true, this call recorded it; false, it was recorded before with the same content.
--          state: posted, pending or voided
-- locks    the group's row, and the rows of its accounts in the order of their names
-- writes   the group, an entry for each line, and the balances. With a fence the group is pending: amounts are
--          held, and nothing is posted before pgonce.ledger_settle
-- raises   22023 a bad name, or entries that cannot be read; P4012 the group is pending under a higher fence;
--          P4070 it was recorded before with other content; P4071 debits and credits differ; P4072 unknown
--          account; P4073 an amount or balance has more than 38 digits; P4074 an amount is not a positive
--          integer; P4075 wrong currency; P4076 closed account; P4077 an account would fall below its floor
-- note     amounts are integers in minor units, as JSON numbers or texts. A group may have several currencies,
--          each balanced by itself
-- example  select pgonce.ledger_open('till', 'EUR', 'debit'), pgonce.ledger_open('sales', 'EUR', 'credit');
--          select * from pgonce.ledger_post('shop', 'order-7',
--              '[{"account": "till", "debit": 4200}, {"account": "sales", "credit": 4200}]');
create or replace function pgonce.ledger_post(p_source text, p_operation text, p_entries jsonb, p_memo jsonb default null,
    p_fence bigint default null, p_tenant text default '')
returns table (made_now boolean, state text, recorded_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_lines record;
begin
    v_lines := pgonce._ledger_lines(p_entries);
    select r.made_now, r.state, r.recorded_at into made_now, state, recorded_at
      from pgonce._ledger_record(coalesce(p_tenant, '') collate "C", p_source, p_operation, v_lines.accounts, v_lines.amounts,
        v_lines.currencies, p_memo, p_fence, null, null) r;
    return next;
end
$$;
