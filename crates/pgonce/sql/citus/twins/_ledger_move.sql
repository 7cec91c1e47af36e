-- pgonce._ledger_move on Citus: as ledger/_ledger_move.sql, in one statement for each account and step: Citus changes one table in a
--          statement.
-- locks    its accounts, or the shard of each that p_pick chooses, in the order of their names
-- note     the time is read when all locks are held, and never goes back within an account
create or replace function pgonce._ledger_move(p_posts integer, p_holds integer, p_tenant text, p_source text, p_operation text,
    p_digest bytea, p_accounts text[], p_amounts numeric[], p_currencies text[], p_pick integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Not in the collation of other arguments: Citus would take it for another tenant.
    v_tenant  text collate "default" := p_tenant;
    v_order    integer[] := array(select u.line from unnest(p_accounts) with ordinality as u (account, line) order by u.account collate "C");
    v_line     integer;
    v_rows     pgonce.ledger_account[];
    v_row      pgonce.ledger_account;
    v_name     text;
    v_amount   numeric;
    v_balance  numeric;
    v_debit    numeric;
    v_credit   numeric;
    v_free     numeric;
    v_change   numeric;
    v_entries  bigint;
    v_hash     bytea;
    v_at       timestamptz;
    v_problem  text;
    v_currencies text[];
    v_total    record;
begin
    foreach v_line in array v_order loop
        v_name := p_accounts[v_line];
        select a.* into v_row from pgonce.ledger_account a
         where a.tenant = v_tenant and a.account = v_name collate "C" and a.shard = p_pick % a.shards for no key update;
        v_rows[v_line] := v_row;
        v_currencies[v_line] := v_row.currency;
        v_at := greatest(v_at, v_row.moved_at);
    end loop;
    v_at := greatest(pgonce.now(), v_at);
    foreach v_line in array v_order loop
        v_row := v_rows[v_line];
        v_amount := p_amounts[v_line];
        -- What can leave the account, and how that changes.
        v_free := case when v_row.normal = 'debit' then v_row.balance - v_row.held_credit else - v_row.balance - v_row.held_debit end;
        v_change := case when v_row.normal = 'debit' then v_amount else - v_amount end * (p_posts + p_holds);
        v_problem := least(v_problem, case
            when v_row.shard is null then format('P4072there is no account "%s"', p_accounts[v_line])
            when v_row.closed_at is not null then format('P4076account "%s" is closed', v_row.account)
            when p_currencies[v_line] <> v_row.currency
                then format('P4075account "%s" is in %s, not in %s', v_row.account, v_row.currency, p_currencies[v_line])
            when greatest(abs(v_row.balance + p_posts * v_amount), v_row.held_debit + p_holds * greatest(v_amount, 0),
                    v_row.held_credit + p_holds * greatest(- v_amount, 0)) >= 1e38
                then format('P4073the balance of account "%s" would have more than 38 digits', v_row.account)
            when v_change < 0 and p_holds >= 0 and v_free + v_change < v_row.floor
                then format('P4077account "%s" would fall below its floor: it has %s available above %s, and the group takes %s',
                    v_row.account, v_free - v_row.floor, v_row.floor, - v_change)
            end);
    end loop;
    if v_problem is not null then
        raise exception '%', substr(v_problem, 6) using errcode = left(v_problem, 5), hint = case left(v_problem, 5)
            when 'P4072' then 'Open it first: pgonce.ledger_open.'
            when 'P4073' then 'Use a larger minor unit.'
            when 'P4075' then 'Name an account in that currency; an exchange is a group with both currencies.'
            when 'P4076' then 'Name an open account.'
            else 'Take less, or pay in first.' end;
    end if;
    select u.currency, sum(u.amount) as total into v_total from unnest(v_currencies, p_amounts) as u (currency, amount)
     group by u.currency having sum(u.amount) <> 0 order by u.currency limit 1;
    if found then
        raise exception 'the group is not balanced' using errcode = 'P4071',
            detail = format('Debits less credits in %s are %s.', v_total.currency, v_total.total),
            hint = 'The debits of a group are equal to its credits, in each currency.';
    end if;
    foreach v_line in array v_order loop
        v_row := v_rows[v_line];
        v_name := p_accounts[v_line];
        v_amount := p_amounts[v_line];
        v_balance := v_row.balance + p_posts * v_amount;
        v_debit := v_row.held_debit + p_holds * greatest(v_amount, 0);
        v_credit := v_row.held_credit + p_holds * greatest(- v_amount, 0);
        v_entries := v_row.entries + p_posts;
        v_hash := v_row.head;
        if p_posts = 1 then
            v_hash := pgonce._ledger_hash(v_row.head, p_digest, v_entries, v_line::smallint, v_at, v_amount, v_balance);
            insert into pgonce.ledger_entry (tenant, account, shard, seq, line, posted_at, source, operation, amount, balance, hash)
            values (v_tenant, v_name, v_row.shard, v_entries, v_line, v_at, p_source, p_operation, v_amount, v_balance, v_hash);
        end if;
        update pgonce.ledger_account a
           set balance = v_balance, held_debit = v_debit, held_credit = v_credit, entries = v_entries, head = v_hash, moved_at = v_at
         where a.tenant = v_tenant and a.account = v_name collate "C" and a.shard = v_row.shard;
    end loop;
end
$$;
