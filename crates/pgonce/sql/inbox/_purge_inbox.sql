-- pgonce._purge_inbox(p_limit): removes markers and stored messages whose time is over, at most p_limit of each
--          table. Call it again while the answer is not 0.
-- answers  how many it removed; none for a session that is bound to a tenant
-- locks    its place in pgonce.sweep: a second one at the same time returns at once; of the rows only those
--          it removes, and none that somebody is using
-- writes   markers older than their consumer's contract keeps them; stored messages that are applied or
--          skipped, after keep_stored. What is not done yet is never removed for being old. In pgonce.sweep how many went
--          of each consumer, by which a projection that is made of them knows that it cannot be made anew. Also of skipped ones: such
--          a one may have been applied before it was replayed
-- raises   22023 when p_limit is not positive
-- note     with the owner's rights, since it walks partitions, as pgonce.purge does, in short stretches. The partition of a day
--          goes as a whole: pgonce._drop_inbox_partitions. Of one that stays for at least as long again, since some consumer keeps
--          its markers, the rest is removed here: once when the first contract ends, then each time it is twice as old, so that a day
--          which is kept for ever is read a few times and not again and again. A call reads 256 MB of such days at most
create or replace function pgonce._purge_inbox(p_limit integer default 10000)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_stretch constant bigint := 512;  -- blocks
    c_sweep   constant text := 'with seen as materialized (
            select m.tenant, m.consumer, m.source, m.message_id, m.day, m.accepted_at from pgonce.%1$I m
             where m.ctid >= %2$L::tid and m.ctid < %3$L::tid
        ), rules as materialized (
            select p.tenant, p.consumer, pgonce._kept_since(p.consumer, p.tenant) as since
              from (select distinct s.tenant, s.consumer from seen s) p
        ), old as materialized (
            select s.* from seen s join rules r using (tenant, consumer) where s.accepted_at < r.since limit $1
        ), gone as (
            delete from pgonce.%1$I m using old o
             where m.tenant = o.tenant and m.consumer = o.consumer and m.source = o.source
               and m.message_id = o.message_id and m.day = o.day and m.accepted_at = o.accepted_at
            returning 1
        ) select count(*) from gone';
    v_name    text;
    v_from    bigint;
    v_blocks  bigint;
    v_walked  bigint;
    v_done    bigint;
    v_count   bigint;
    v_total   bigint := 0;
    v_now     timestamptz := pgonce.now();
    v_days    boolean := false;
    v_left    bigint := 64;  -- stretches of days
begin
    if p_limit is null or p_limit < 1 then
        raise exception 'pgonce._purge_inbox needs a positive limit, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Call it again and again with a limit such as 10000.';
    end if;
    if not pgonce._tenant_is_allowed('') then
        return 0;  -- it does not see the contracts of other tenants, who may keep their markers for longer
    end if;
    foreach v_name in array array['inbox_marker_timeless', 'inbox_marker_default'] loop
        select w.next_block into v_from from pgonce.sweep w
         where w.tenant = '' and w.name = v_name for update skip locked;
        if not found then
            insert into pgonce.sweep (name) select v_name
             where not exists (select from pgonce.sweep w where w.tenant = '' and w.name = v_name)
            on conflict on constraint one_place_per_sweep do nothing;
            continue;
        end if;
        -- Who has this place keeps partitions from being dropped meanwhile.
        v_days := v_name = 'inbox_marker_default';
        v_blocks := pg_relation_size(('pgonce.' || v_name)::regclass) / current_setting('block_size')::bigint;
        v_walked := 0;
        v_done := 0;
        while v_walked <= v_blocks and v_done < p_limit loop
            if v_from >= v_blocks then
                v_from := 0;
            end if;
            execute format(c_sweep, v_name, format('(%s,0)', v_from), format('(%s,0)', v_from + c_stretch))
                into v_count using p_limit - v_done;
            v_done := v_done + v_count;
            if v_done < p_limit then
                v_from := v_from + c_stretch;
                v_walked := v_walked + c_stretch;
            end if;
        end loop;
        update pgonce.sweep w set next_block = v_from, swept_at = pgonce.now() where w.tenant = '' and w.name = v_name;
        v_total := v_total + v_done;
    end loop;

    for v_name, v_from, v_blocks in
        select c.relname::text, coalesce(s.next_block, 0), pg_relation_size(c.oid) / current_setting('block_size')::bigint
          from pg_inherits i join pg_class c on c.oid = i.inhrelid
          join pgonce.sweep k on k.tenant = '' and k.name = 'inbox_kept_' || right(c.relname, 8)
          left join pgonce.sweep s on s.tenant = '' and s.name = c.relname::text
         -- Of other names it is null: the order in which conditions are looked at is not ours.
         cross join lateral (select (case when k.name ~ '^inbox_kept_[0-9]{8}$' then right(k.name, 8)::date + 1 end)::timestamp
                at time zone 'UTC' as over_at) d
         where v_days and i.inhparent = 'pgonce.inbox_marker'::regclass
           and k.swept_at > v_now + (v_now - d.over_at)
           and d.over_at + (select min(least(r.keep, interval '5000 years')) from pgonce.inbox_contract r
                where r.kept_before_until is distinct from 'infinity') <= v_now
           and (s.next_block > 0 or coalesce(s.swept_at + (s.swept_at - d.over_at) <= v_now, true))
         order by s.swept_at nulls first, c.relname
    loop
        exit when v_left <= 0;
        v_done := 0;
        while v_from < v_blocks and v_left > 0 and v_done < p_limit loop
            execute format(c_sweep, v_name, format('(%s,0)', v_from), format('(%s,0)', v_from + c_stretch))
                into v_count using p_limit - v_done;
            v_done := v_done + v_count;
            v_left := v_left - 1;
            if v_done < p_limit then
                v_from := v_from + c_stretch;
            end if;
        end loop;
        v_total := v_total + v_done;
        -- Where it is not through, the next call goes on.
        insert into pgonce.sweep (name, next_block, swept_at)
        values (v_name, case when v_from < v_blocks then v_from else 0 end, case when v_from >= v_blocks then v_now end)
        on conflict on constraint one_place_per_sweep do update
           set next_block = excluded.next_block, swept_at = coalesce(excluded.swept_at, pgonce.sweep.swept_at);
    end loop;

    with rules as materialized (
        select p.tenant, p.consumer,
               v_now - least((pgonce._inbox_rules(p.consumer, p.tenant)).keep_stored, interval '5000 years') as since
          from (select distinct m.tenant, m.consumer from pgonce.inbox_message m) p
    ), old as materialized (
        select m.tenant, m.consumer, m.seq from pgonce.inbox_message m
          join rules r using (tenant, consumer)
         where m.settled_at < r.since and (m.status = 'processed' or m.skipped_at is not null)
         limit p_limit for update of m skip locked
    ), gone as (
        delete from pgonce.inbox_message m using old o
         where m.tenant = o.tenant and m.consumer = o.consumer and m.seq = o.seq
        returning m.consumer
    ), noted as (
        insert into pgonce.sweep as w (name, next_block, swept_at)
        select 'inbox_gone/' || g.consumer, count(*), v_now from gone g group by g.consumer order by 1
        on conflict on constraint one_place_per_sweep do update
           set next_block = w.next_block + excluded.next_block, swept_at = excluded.swept_at
    )
    select count(*) into v_count from gone;
    return v_total + v_count;
end
$$;
revoke execute on function pgonce._purge_inbox(integer) from public;
