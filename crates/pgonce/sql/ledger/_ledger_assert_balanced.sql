-- pgonce._ledger_assert_balanced(p_tenant, p_accounts, p_amounts): checks a group with several currencies.
-- raises   P4071 debits and credits of a currency differ
create or replace function pgonce._ledger_assert_balanced(p_tenant text, p_accounts text[], p_amounts numeric[])
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v record;
begin
    for v in
        select a.currency, sum(u.amount) as total from unnest(p_accounts, p_amounts) as u (account, amount)
          join pgonce.ledger_account a on a.tenant = p_tenant and a.account = u.account and a.shard = 0
         group by a.currency having sum(u.amount) <> 0 order by a.currency limit 1
    loop
        raise exception 'the group is not balanced' using errcode = 'P4071',
            detail = format('Debits less credits in %s are %s.', v.currency, v.total),
            hint = 'The debits of a group are equal to its credits, in each currency.';
    end loop;
end
$$;
