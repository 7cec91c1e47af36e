-- pgonce.ledger_close(p_account, p_tenant): closes an account whose balance is zero.
-- answers  true: it is closed now; false: it was closed before
-- locks    the account
-- writes   its rows
-- raises   P4072 unknown account; P4077 it has a balance, or pending groups hold some of it
-- example  select pgonce.ledger_open('till:7', 'EUR', 'debit');
--          select pgonce.ledger_close('till:7');
create or replace function pgonce.ledger_close(p_account text, p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant  text collate "default" := coalesce(p_tenant, '');
    v_account text collate "C" := p_account;
    v_now     timestamptz;
    v_total   numeric;
    v_held    numeric;
    v_open    bigint;
begin
    perform pgonce._force_durable_commit();
    select sum(x.balance), sum(x.held_debit + x.held_credit), count(*) filter (where x.closed_at is null)
      into v_total, v_held, v_open
      from (select * from pgonce.ledger_account a where a.tenant = v_tenant and a.account = v_account
             order by a.shard for no key update) x;
    if v_total is null then
        raise exception 'there is no account "%"', p_account using errcode = 'P4072', hint = 'Look in pgonce.ledger_accounts.';
    elsif v_open = 0 then
        return false;
    elsif v_total <> 0 or v_held <> 0 then
        raise exception 'account "%" has a balance, or amounts that are pending', p_account using errcode = 'P4077',
            hint = 'Move its balance away and settle its pending groups first.';
    end if;
    v_now := pgonce.now();
    update pgonce.ledger_account a set closed_at = v_now where a.tenant = v_tenant and a.account = v_account;
    return true;
end
$$;
