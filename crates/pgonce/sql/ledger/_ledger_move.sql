-- pgonce._ledger_move(p_posts, p_holds, p_tenant, p_source, p_operation, p_digest, p_accounts, p_amounts,
--          p_currencies, p_pick): applies a group to its accounts, in one statement.
-- locks    its accounts, or the shard of each that p_pick chooses, in the order of their names
-- writes   the balances; an entry for each line where p_posts is 1; what is held, more by p_holds times each
--          amount
-- raises   as pgonce.ledger_post
-- note     the time is read when all locks are held, and never goes back within an account: so a group is on
--          one side of any point in time. Few and large statements: PL/pgSQL prepares every expression anew in
--          each transaction. The plan is kept, and uses the index whatever the planner thinks of a small table
create or replace function pgonce._ledger_move(p_posts integer, p_holds integer, p_tenant text, p_source text, p_operation text,
    p_digest bytea, p_accounts text[], p_amounts numeric[], p_currencies text[], p_pick integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
    v_problem text;
    v_sum     numeric;
begin
    with l as materialized (
        select u.account, u.amount, u.currency as named, u.line::smallint as line, a.shard, a.currency, a.normal, a.floor,
               a.balance + p_posts * u.amount as balance, a.held_debit + p_holds * greatest(u.amount, 0) as held_debit,
               a.held_credit + p_holds * greatest(- u.amount, 0) as held_credit, a.entries + p_posts as entries, a.head,
               a.moved_at, a.closed_at,
               -- What can leave the account, and how that changes.
               case when a.normal = 'debit' then a.balance - a.held_credit else - a.balance - a.held_debit end as available,
               case when a.normal = 'debit' then u.amount else - u.amount end * (p_posts + p_holds) as change
          from (select * from unnest(p_accounts, p_amounts, p_currencies) with ordinality as u (account, amount, currency, line)
                 order by u.account collate "C") u
          left join lateral (select * from pgonce.ledger_account a
                 where a.tenant = p_tenant and a.account = u.account and a.shard = p_pick % a.shards
                   for no key update) a on true
    ), m as materialized (
        select l.*, t.at, pgonce._ledger_hash(l.head, p_digest, l.entries, l.line, t.at, l.amount, l.balance) as hash,
               case when l.shard is null then format('P4072there is no account "%s"', l.account)
                    when l.closed_at is not null then format('P4076account "%s" is closed', l.account)
                    when l.named <> l.currency then format('P4075account "%s" is in %s, not in %s', l.account, l.currency, l.named)
                    when greatest(abs(l.balance), l.held_debit, l.held_credit) >= 1e38
                        then format('P4073the balance of account "%s" would have more than 38 digits', l.account)
                    when l.change < 0 and p_holds >= 0 and l.available + l.change < l.floor
                        then format('P4077account "%s" would fall below its floor: it has %s available above %s, and the group takes %s',
                            l.account, l.available - l.floor, l.floor, - l.change)
               end as problem
          from l cross join (select greatest(pgonce.now(), max(l.moved_at)) as at from l) t
    ), e as (
        insert into pgonce.ledger_entry (tenant, account, shard, seq, line, posted_at, source, operation, amount, balance, hash)
        select p_tenant, m.account, m.shard, m.entries, m.line, m.at, p_source, p_operation, m.amount, m.balance, m.hash
          from m where p_posts = 1 and m.problem is null
    ), u as (
        update pgonce.ledger_account a
           set balance = m.balance, held_debit = m.held_debit, held_credit = m.held_credit, entries = m.entries,
               head = case when p_posts = 1 then m.hash else m.head end, moved_at = m.at
          from m
         where a.tenant = p_tenant and a.account = m.account and a.shard = m.shard and m.problem is null
    )
    select min(m.problem), case when min(m.currency) = max(m.currency) then sum(m.amount) end into v_problem, v_sum from m;
    if v_problem is not null then
        raise exception '%', substr(v_problem, 6) using errcode = left(v_problem, 5), hint = case left(v_problem, 5)
            when 'P4072' then 'Open it first: pgonce.ledger_open.'
            when 'P4073' then 'Use a larger minor unit.'
            when 'P4075' then 'Name an account in that currency; an exchange is a group with both currencies.'
            when 'P4076' then 'Name an open account.'
            else 'Take less, or pay in first.' end;
    elsif v_sum is distinct from 0 then
        perform pgonce._ledger_assert_balanced(p_tenant, p_accounts, p_amounts);
    end if;
end
$$;
