-- pgonce._drop_inbox_partitions(): drops partitions of markers none of which has to be kept any more.
-- answers  how many it dropped, at most 4: writers wait while it does, so the rest is left to the next call; none for a
--          session that is bound to a tenant
-- locks    each old partition, and the markers for the moment of dropping it. Writers wait behind it for 15 ms at most: then it
--          gives way, and tries again after a pause, as often as pgonce._lock_tries says
-- raises   25001 not at READ COMMITTED: it could not see what commits while it waits for the lock
-- note     with the owner's rights: consumers call it. A day is over only when its last marker is: a message
--          may come long after its id was made. It is looked at under the lock, so nobody adds one meanwhile.
--          Later ids of such a day go to inbox_marker_default
create or replace function pgonce._drop_inbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    -- A partition that is looked at in a moment.
    c_small  constant bigint := 65536;
    v_part   record;
    v_over   text[];
    v_name   text;
    v_kept   boolean;
    v_missed boolean := false;
    v_count  integer := 0;
    c_kept   constant text := 'select exists (select from %s m join lateral (select pgonce._kept_since(k.consumer, k.tenant) as since
            from (select m.consumer, m.tenant) k) s on true where m.accepted_at >= s.since)';
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'dropping partitions has to see what commits meanwhile' using errcode = '25001',
            hint = 'Call it in a transaction at READ COMMITTED.';
    end if;
    if not pgonce._tenant_is_allowed('') then
        return 0;  -- it does not see the contracts of other tenants, who may keep their markers for longer
    end if;
    perform from pgonce.sweep w where w.tenant = '' and w.name = 'inbox_marker_default' for update;
    for v_try in 1..pgonce._lock_tries('inbox_drop') loop
        begin
            v_over := '{}';
            for v_part in
                select c.oid::regclass as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
                 where i.inhparent = 'pgonce.inbox_marker'::regclass and c.relname ~ '^inbox_marker_[0-9]{8}$'
                   and right(c.relname, 8)::date < (pgonce.now() at time zone 'UTC')::date
                 order by c.relname limit 4
            loop
                execute format('lock table %s in access exclusive mode', v_part.name);
                execute format(c_kept, v_part.name) into v_kept;
                exit when v_kept;
                v_over := v_over || v_part.name::text;
            end loop;
            -- All are looked at before the first is dropped: from then on writers wait.
            foreach v_name in array v_over loop
                execute format('drop table %s', v_name);
            end loop;
            v_count := cardinality(v_over);
            v_missed := false;
            exit;
        exception when lock_not_available then
            -- Undone, and with it every lock of this try: those who waited go on.
            v_missed := true;
        end;
        v_kept := null;
        foreach v_name in array v_over loop
            continue when pg_relation_size(v_name::regclass) <= c_small;
            -- Emptied, so that the next round has nothing to look at under the lock.
            begin
                execute format('lock table %s in access exclusive mode', v_name);
                execute format(c_kept, v_name) into v_kept;
                continue when v_kept;
                execute format('truncate %s', v_name);
            exception when lock_not_available then
                v_kept := true;
            end;
        end loop;
        -- A lock of this kind is held to the end.
        exit when v_kept is not null;
        perform pg_sleep(0.01 + 0.03 * random());
    end loop;
    perform pgonce._lock_tries('inbox_drop', v_missed);
    return v_count;
exception when lock_not_available then
    return 0;
end
$$;
revoke execute on function pgonce._drop_inbox_partitions() from public;
