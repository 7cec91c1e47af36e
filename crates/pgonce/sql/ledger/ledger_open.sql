-- pgonce.ledger_open(p_account, p_currency, p_normal, p_floor, p_shards, p_tenant): opens an account of the
--          ledger.
-- answers  true: it is new; false: it was opened before, as it is described here
-- locks    what inserts lock
-- writes   a row of pgonce.ledger_account for each shard
-- raises   22023 a bad name, currency or side, shards outside 1 to 64, or a floor with several shards; P4070 it
--          exists and is something else
-- note     p_normal is the side that makes its balance grow: 'debit' for what you own, 'credit' for what you
--          owe. p_floor is the least balance, in minor units; null: none. p_shards spreads an account that
--          many clients post to over several rows; such an account has no floor
-- example  select pgonce.ledger_open('cash', 'EUR', 'debit');
--          select pgonce.ledger_open('wallet:ada', 'EUR', 'credit', p_floor => 0);
create or replace function pgonce.ledger_open(p_account text, p_currency text, p_normal text, p_floor numeric default null,
    p_shards integer default 1, p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    -- Not in the collation of a column or of other arguments: Citus would take it for another tenant.
    v_tenant  text collate "default" := coalesce(p_tenant, '');
    v_account pgonce.ledger_account;
    v_new     boolean;
begin
    if (octet_length(p_account) between 1 and 255) is not true then
        raise exception 'an account needs a name of 1 to 255 bytes' using errcode = '22023', hint = 'For example ''wallet:ada''.';
    elsif (p_currency collate "C" ~ '^[A-Za-z0-9._-]{1,32}$') is not true then
        raise exception 'a currency has 1 to 32 letters, digits, dots, dashes and underscores' using errcode = '22023',
            hint = 'For example EUR, or BTC.';
    elsif (p_normal collate "C" in ('debit', 'credit')) is not true then
        raise exception 'the normal side of an account is debit or credit' using errcode = '22023',
            hint = 'debit for what you own or spend; credit for what you owe or earn.';
    elsif (p_shards between 1 and 64) is not true or (p_shards > 1 and p_floor is not null) then
        raise exception 'an account has 1 to 64 shards, and one with a floor has 1' using errcode = '22023',
            hint = 'A floor needs the whole balance in one row.';
    elsif p_floor <> trunc(p_floor) or abs(p_floor) >= 1e38 then
        raise exception 'the floor is not an integer of at most 38 digits' using errcode = '22023', hint = 'Give minor units.';
    end if;
    perform pgonce._force_durable_commit();
    v_account.tenant := v_tenant;
    v_account.account := p_account;
    v_account.shards := p_shards;
    v_account.currency := p_currency;
    v_account.normal := p_normal;
    v_account.opened_at := pgonce.now();
    for v_shard in 0 .. p_shards - 1 loop
        v_account.shard := v_shard;
        v_account.head := pgonce._ledger_genesis(v_account);
        insert into pgonce.ledger_account (tenant, account, shard, shards, currency, normal, floor, head, opened_at, moved_at)
        values (v_tenant, p_account, v_shard, p_shards, p_currency, p_normal, p_floor, v_account.head, v_account.opened_at,
            v_account.opened_at)
        on conflict do nothing;
        v_new := found;
        exit when not found;
    end loop;
    if v_new then
        return true;
    end if;
    if not exists (
        select from pgonce.ledger_account a
         where a.tenant = v_tenant and a.account = v_account.account and a.shard = 0 and a.closed_at is null
           and (a.shards, a.currency, a.normal) = (p_shards, v_account.currency, v_account.normal) and a.floor is not distinct from p_floor)
    then
        raise exception 'account "%" exists, and is something else or closed', p_account using errcode = 'P4070',
            hint = 'Look at it in pgonce.ledger_accounts, or choose another name.';
    end if;
    return false;
end
$$;
