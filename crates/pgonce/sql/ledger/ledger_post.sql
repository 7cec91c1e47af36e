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
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    v_tenant   text collate "C" := coalesce(p_tenant, '');
    v_lines    record;
    -- Of a plain transfer: the accounts of its two lines, and what the first line does; the second undoes that.
    v_one      text collate "C";
    v_two      text collate "C";
    v_amount   numeric;
    v_digest   bytea;
    -- The account that is locked first, by its name: its line, what the group does to it, and what it is.
    v_line     smallint;
    v_change   numeric;
    v_currency text collate "C";
    v_at       timestamptz;
    v_first    record;
    v_second   record;
begin
    -- A plain transfer between two accounts, as most groups are, goes a short way: few statements and few expressions, since
    -- PL/pgSQL prepares each anew in every transaction, and each statement finds one row by its key, whatever the planner knows.
    if p_fence is null and jsonb_typeof(p_entries) = 'array' and jsonb_array_length(p_entries) = 2 then
        v_one := p_entries -> 0 ->> 'account';
        v_two := p_entries -> 1 ->> 'account';
        v_amount := pgonce._ledger_amount(p_entries -> 0);
    end if;
    if v_amount = - pgonce._ledger_amount(p_entries -> 1) and v_one <> v_two and octet_length(p_source) between 1 and 255
        and octet_length(p_operation) between 1 and 255 and pgonce._is_one_node() and pgonce._force_durable_commit()
    then
        v_digest := pgonce._ledger_digest(v_tenant, p_source collate "C", p_operation, false, array[v_one, v_two],
            array[v_amount, - v_amount], p_memo, null, null);
        insert into pgonce.ledger_group as g (tenant, source, operation, recorded_at, pending, digest, accounts, amounts, memo)
        values (v_tenant, p_source, p_operation, pgonce.now(), false, v_digest, array[v_one, v_two], array[v_amount, - v_amount], p_memo)
        on conflict on constraint one_group_per_operation do nothing
        returning true, 'posted', g.recorded_at into made_now, state, recorded_at;
        if not found then
            select false, 'posted', g.recorded_at into made_now, state, recorded_at from pgonce.ledger_group g
             where g.tenant = v_tenant and g.source = p_source collate "C" and g.operation = p_operation collate "C"
               and g.digest = v_digest;
        end if;
    end if;
    if made_now is null then
        -- Another group, or what is wrong with this one.
        v_lines := pgonce._ledger_lines(p_entries);
        select r.made_now, r.state, r.recorded_at into made_now, state, recorded_at
          from pgonce._ledger_record(v_tenant collate "C", p_source, p_operation, v_lines.accounts, v_lines.amounts, v_lines.currencies,
            p_memo, p_fence, null, null) r;
    elsif made_now then
        v_line := case when v_one < v_two then 1 else 2 end;
        v_change := case when v_one < v_two then v_amount else - v_amount end;
        -- An account is found only where nothing speaks against the group; the second only where the first was.
        select a.moved_at, a.currency into v_at, v_currency from pgonce.ledger_account a
         where a.tenant = v_tenant and a.account = least(v_one, v_two) and a.shard = pg_backend_pid() % a.shards
           and a.closed_at is null and abs(a.balance + v_change) < 1e38
           and (a.floor is null or (v_change > 0) = (a.normal = 'debit')
                or case a.normal when 'debit' then a.balance - a.held_credit else - a.balance - a.held_debit end - abs(v_amount) >= a.floor)
           for no key update;
        v_at := greatest(pgonce.now(), v_at);
        update pgonce.ledger_account a
           set balance = a.balance - v_change, entries = a.entries + 1, moved_at = greatest(v_at, a.moved_at),
               head = pgonce._ledger_hash(a.head, v_digest, a.entries + 1, (3 - v_line)::smallint, greatest(v_at, a.moved_at), - v_change,
                   a.balance - v_change)
         where a.tenant = v_tenant and a.account = greatest(v_one, v_two) and a.shard = pg_backend_pid() % a.shards
           and a.currency = v_currency and a.closed_at is null and abs(a.balance - v_change) < 1e38
           and (a.floor is null or (v_change < 0) = (a.normal = 'debit')
                or case a.normal when 'debit' then a.balance - a.held_credit else - a.balance - a.held_debit end - abs(v_amount) >= a.floor)
        returning a.shard, a.entries, a.balance, a.head, a.moved_at into v_second;
        if not found then
            -- Nothing is moved yet: this says what is wrong.
            v_lines := pgonce._ledger_lines(p_entries);
            perform pgonce._ledger_move(1, 0, v_tenant collate "C", p_source, p_operation, v_digest, v_lines.accounts, v_lines.amounts,
                v_lines.currencies, pg_backend_pid());
        else
            -- The time of both entries is not before any other of either account.
            update pgonce.ledger_account a
               set balance = a.balance + v_change, entries = a.entries + 1, moved_at = v_second.moved_at,
                   head = pgonce._ledger_hash(a.head, v_digest, a.entries + 1, v_line, v_second.moved_at, v_change, a.balance + v_change)
             where a.tenant = v_tenant and a.account = least(v_one, v_two) and a.shard = pg_backend_pid() % a.shards
            returning a.shard, a.entries, a.balance, a.head into v_first;
            insert into pgonce.ledger_entry (tenant, account, shard, seq, line, posted_at, source, operation, amount, balance, hash)
            values (v_tenant, least(v_one, v_two), v_first.shard, v_first.entries, v_line, v_second.moved_at, p_source, p_operation,
                    v_change, v_first.balance, v_first.head),
                   (v_tenant, greatest(v_one, v_two), v_second.shard, v_second.entries, 3 - v_line, v_second.moved_at, p_source,
                    p_operation, - v_change, v_second.balance, v_second.head);
        end if;
    end if;
    return next;
end
$$;
