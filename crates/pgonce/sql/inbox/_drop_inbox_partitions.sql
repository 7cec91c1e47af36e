-- pgonce._drop_inbox_partitions(): drops partitions of markers none of which has to be kept any more.
-- answers  how many it dropped, at most 4: writers wait while it does, so the rest is left to the next call; none for a
--          session that is bound to a tenant
-- locks    each partition that is over, and the markers for the moment of dropping it. Writers wait behind it for 15 ms at most: then
--          it gives way, and tries again after a pause, as often as pgonce._lock_tries says. Partitions that are not over: nothing
-- writes   pgonce.sweep: for each day that is not over where it found a marker to keep, and until when that one is kept: the day is not
--          looked at before. At most 100 days a call, the one that was due first before the others
-- raises   25001 not at READ COMMITTED: it could not see what commits while it waits for the lock
-- note     with the owner's rights: consumers call it. A day is over only when its last marker is: a message
--          may come long after its id was made. It is looked at once more under the lock, so nobody adds one meanwhile.
--          Later ids of such a day go to inbox_marker_default. What may be forgotten of a day that stays: pgonce._purge_inbox
create or replace function pgonce._drop_inbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    -- A partition that is looked at in a moment.
    c_small   constant bigint := 65536;
    c_stretch constant bigint := 512;  -- blocks
    v_part    record;
    v_count   bigint;
    v_place   bigint;
    v_until   timestamptz;
    v_over    text[] := '{}';
    v_gone    text[];
    v_name    text;
    v_kept    boolean;
    v_missed  boolean := false;
    -- By consumer, since asking for each marker would take a hundred times as long.
    c_newest  constant text := '(select m.tenant, m.consumer, max(m.accepted_at) as at from pgonce.%I m %s group by m.tenant, m.consumer) g
            where g.at >= pgonce._kept_since(g.consumer, g.tenant)';
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'dropping partitions has to see what commits meanwhile' using errcode = '25001',
            hint = 'Call it in a transaction at READ COMMITTED.';
    end if;
    if not pgonce._tenant_is_allowed('') then
        return 0;  -- it does not see the contracts of other tenants, who may keep their markers for longer
    end if;
    perform from pgonce.sweep w where w.tenant = '' and w.name = 'inbox_marker_default' for update;
    for v_part in
        select c.relname::text as name, w.name as place, coalesce(w.next_block, 0) as block,
               pg_relation_size(c.oid) / current_setting('block_size')::bigint as blocks
          from pg_inherits i join pg_class c on c.oid = i.inhrelid
          left join pgonce.sweep w on w.tenant = '' and w.name = 'inbox_kept_' || right(c.relname, 8)
         where i.inhparent = 'pgonce.inbox_marker'::regclass and case when c.relname ~ '^inbox_marker_[0-9]{8}$'
                    then right(c.relname, 8)::date < (pgonce.now() at time zone 'UTC')::date end
           and coalesce(w.swept_at <= pgonce.now(), true)
         order by w.swept_at nulls first, c.relname limit 100
    loop
        exit when cardinality(v_over) = 4;
        -- From where one was kept the last time, once around: what is before it was over then.
        v_count := v_part.blocks / c_stretch + 1;
        v_until := null;
        for v_step in 0 .. v_count - 1 loop
            v_place := (v_part.block / c_stretch + v_step) % v_count * c_stretch;
            execute 'select max(pgonce._kept_until(g.consumer, g.tenant, g.at)) from ' || format(c_newest, v_part.name,
                format('where m.ctid >= %L::tid and m.ctid < %L::tid', format('(%s,0)', v_place), format('(%s,0)', v_place + c_stretch)))
                into v_until;
            exit when v_until is not null;
        end loop;
        if v_until is null then
            v_over := v_over || v_part.name;
        else
            insert into pgonce.sweep (name, next_block, swept_at) values ('inbox_kept_' || right(v_part.name, 8), v_place, v_until)
            on conflict on constraint one_place_per_sweep do update set next_block = excluded.next_block, swept_at = excluded.swept_at;
        end if;
    end loop;
    for v_try in 1..pgonce._lock_tries('inbox_drop') loop
        begin
            v_gone := '{}';
            foreach v_name in array v_over loop
                execute format('lock table pgonce.%I in access exclusive mode', v_name);
                execute format('select exists (select from ' || c_newest || ')', v_name, '') into v_kept;
                continue when v_kept;
                v_gone := v_gone || v_name;
            end loop;
            -- All are looked at before the first is dropped: from then on writers wait.
            foreach v_name in array v_gone loop
                execute format('drop table pgonce.%I', v_name);
                delete from pgonce.sweep w
                 where w.tenant = '' and w.name in (v_name collate "C", 'inbox_kept_' || right(v_name, 8) collate "C");
            end loop;
            v_missed := false;
            exit;
        exception when lock_not_available then
            -- Undone, and with it every lock of this try: those who waited go on.
            v_missed := true;
            v_gone := '{}';
        end;
        v_kept := null;
        foreach v_name in array v_over loop
            continue when pg_relation_size(format('pgonce.%I', v_name)::regclass) <= c_small;
            -- Emptied, so that the next round has nothing to look at under the lock.
            begin
                execute format('lock table pgonce.%I in access exclusive mode', v_name);
                execute format('select exists (select from ' || c_newest || ')', v_name, '') into v_kept;
                continue when v_kept;
                execute format('truncate pgonce.%I', v_name);
            exception when lock_not_available then
                v_kept := true;
            end;
        end loop;
        -- A lock of this kind is held to the end.
        exit when v_kept is not null;
        perform pg_sleep(0.01 + 0.03 * random());
    end loop;
    perform pgonce._lock_tries('inbox_drop', v_missed);
    return cardinality(v_gone);
exception when lock_not_available then
    return 0;
end
$$;
revoke execute on function pgonce._drop_inbox_partitions() from public;
