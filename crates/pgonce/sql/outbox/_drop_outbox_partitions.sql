-- pgonce._drop_outbox_partitions(): drops the log's partitions that nobody needs: older than they are to be
--          kept, and past every subscription that was not evicted.
-- answers  how many it dropped, at most 4: writers wait while it does, so the rest is left to the next call
-- locks    each old partition, and the log for the moment of dropping it. Writers wait behind it for 15 ms at most: then it
--          gives way, and tries again after a pause, as often as pgonce._lock_tries says
-- writes   evicts subscriptions that have not read what is older than max_keep; in pgonce.sweep up to where the log is gone
-- raises   25001 not at READ COMMITTED: it could not see what commits while it waits for the lock;
--          42501 the session's role is bound to a tenant: it would not see what others have not read
-- note     with the owner's rights: relays call it
create or replace function pgonce._drop_outbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    v_life   pgonce.outbox_state;
    v_part   record;
    v_age    interval;
    v_old    bigint[] := '{}';
    v_missed boolean := false;
    v_count  integer := 0;
    v_gone   bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'dropping partitions has to see what commits meanwhile' using errcode = '25001',
            hint = 'Call it in a transaction at READ COMMITTED.';
    end if;
    perform pgonce._refuse_bound('the log belongs');
    select l.* into strict v_life from pgonce.outbox_state l for update;
    for v_part in
        select p.from_seq, p.to_seq, (select min(m.at) from pgonce.outbox_watermark m where m.seq >= p.to_seq - 1) as over_at
          from pgonce.outbox_partition p order by p.from_seq limit 4
    loop
        v_age := pgonce.now() - v_part.over_at;
        exit when v_age is null or v_age < v_life.keep;
        if v_age >= v_life.max_keep then
            perform pgonce.evict_subscription(c.subscription, format('it had not read events older than %s', v_life.max_keep))
               from pgonce.outbox_subscription c
              where c.evicted_at is null and exists (
                    -- Something is unread: the floor alone may lie behind any transaction that is open, of whatever writes.
                    select from pgonce.outbox_cursor x
                      join pgonce.outbox o on o.lane = x.lane and o.seq >= v_part.from_seq and o.seq < v_part.to_seq
                     where x.subscription = c.subscription and (x.cursor).floor < v_part.to_seq - 1
                       and pgonce._is_unread(o.seq, o.xid, x.cursor, v_life.base_seq));
        end if;
        v_old := v_old || v_part.from_seq;
    end loop;
    for v_try in 1..pgonce._lock_tries('outbox_drop') loop
        begin
            for v_part in select p.from_seq, p.to_seq from pgonce.outbox_partition p where p.from_seq = any (v_old) order by p.from_seq loop
                -- Locked first, then checked: a commit, or a subscription that goes back, while this waits for the lock counts.
                execute format('lock table pgonce.outbox_%s in access exclusive mode', v_part.from_seq);
                exit when exists (select from pgonce.outbox_cursor x join pgonce.outbox_subscription c using (subscription)
                                   where c.evicted_at is null and (x.cursor).floor < v_part.to_seq - 1);
                execute format('drop table pgonce.outbox_%s', v_part.from_seq);
                delete from pgonce.outbox_partition p where p.from_seq = v_part.from_seq;
                v_gone := v_part.to_seq - 1;
                v_count := v_count + 1;
            end loop;
            v_missed := false;
            exit;
        exception when lock_not_available then
            -- Undone, and with it every lock of this try: those who waited go on.
            v_missed := true;
            v_count := 0;
            v_gone := null;
            perform pg_sleep(0.01 + 0.03 * random());
        end;
    end loop;
    if v_missed then
        -- The room is given back at least, under the lock of the partition alone, whatever writers of the log hold.
        for v_part in select p.from_seq, p.to_seq from pgonce.outbox_partition p where p.from_seq = any (v_old) order by p.from_seq loop
            begin
                execute format('lock table pgonce.outbox_%s in access exclusive mode', v_part.from_seq);
                exit when exists (select from pgonce.outbox_cursor x join pgonce.outbox_subscription c using (subscription)
                                   where c.evicted_at is null and (x.cursor).floor < v_part.to_seq - 1);
                execute format('truncate pgonce.outbox_%s', v_part.from_seq);
                v_gone := v_part.to_seq - 1;
            exception when lock_not_available then
                exit;
            end;
        end loop;
    end if;
    -- What came while no partition was there for it: looked at, locked, and looked at once more.
    for v_look in 1..2 loop
        exit when not exists (select from pgonce.outbox_default r having max(r.created_at) < pgonce.now() - v_life.keep
            and max(r.seq) <= (select coalesce(min((x.cursor).floor), max(r.seq)) from pgonce.outbox_cursor x
                                 join pgonce.outbox_subscription c using (subscription) where c.evicted_at is null));
        if v_look = 2 then
            v_gone := greatest(v_gone, (select max(r.seq) from pgonce.outbox_default r));
            truncate pgonce.outbox_default;
        else
            begin
                lock table pgonce.outbox_default in access exclusive mode;
            exception when lock_not_available then
                v_missed := true;
                exit;
            end;
        end if;
    end loop;
    perform pgonce._lock_tries('outbox_drop', v_missed);
    if v_gone is not null then
        -- Also where the partition is still there, and empty: what is made anew from the log would lack its events.
        insert into pgonce.sweep as w (name, next_block, swept_at) values ('outbox_gone', v_gone, pgonce.now())
        on conflict on constraint one_place_per_sweep do update
           set next_block = greatest(w.next_block, excluded.next_block), swept_at = excluded.swept_at;
    end if;
    delete from pgonce.outbox_watermark m
     where m.seq < (select min(p.from_seq) from pgonce.outbox_partition p)
       and exists (select from pgonce.outbox_watermark k
                    where k.xid > m.xid and k.seq < (select min(p.from_seq) from pgonce.outbox_partition p));
    delete from pgonce.outbox_skipped s
     where s.skipped_at < pgonce.now() - greatest(v_life.keep, v_life.max_keep, interval '30 days');
    return v_count;
exception when lock_not_available then
    return 0;
end
$$;
revoke execute on function pgonce._drop_outbox_partitions() from public;
