-- pgonce._drop_inbox_partitions(): drops partitions of markers none of which has to be kept any more.
-- answers  how many it dropped
-- locks    each old partition, and the markers for the moment of dropping it; waits at most a moment for
--          writers, then leaves the rest to the next call, which waits longer: pgonce._lock_wait
-- raises   25001 not at READ COMMITTED: it could not see what commits while it waits for the lock
-- note     with the owner's rights: consumers call it. A day is over only when its last marker is: a message
--          may come long after its id was made. It is looked at under the lock, so nobody adds one meanwhile.
--          Later ids of such a day go to inbox_marker_default
create or replace function pgonce._drop_inbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    v_part   record;
    v_kept   boolean;
    v_missed boolean := false;
    v_count  integer := 0;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'dropping partitions has to see what commits meanwhile' using errcode = '25001',
            hint = 'Call it in a transaction at READ COMMITTED.';
    end if;
    perform from pgonce.sweep w where w.tenant = '' and w.name = 'inbox_marker_default' for update;
    perform set_config('lock_timeout', pgonce._lock_wait('inbox_drop') || 'ms', true);
    for v_part in
        select c.oid::regclass as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'pgonce.inbox_marker'::regclass and c.relname ~ '^inbox_marker_[0-9]{8}$'
           and right(c.relname, 8)::date < (pgonce.now() at time zone 'UTC')::date
         order by c.relname
    loop
        begin
            execute format('lock table %s in access exclusive mode', v_part.name);
        exception when lock_not_available then
            v_missed := true;
            exit;
        end;
        execute format('select exists (select from %s m join lateral (select pgonce._kept_since(k.consumer, k.tenant) as since
            from (select m.consumer, m.tenant) k) s on true where m.accepted_at >= s.since)', v_part.name) into v_kept;
        exit when v_kept;
        begin
            execute format('drop table %s', v_part.name);
            v_count := v_count + 1;
        exception when lock_not_available then
            v_missed := true;
            exit;
        end;
    end loop;
    perform pgonce._lock_wait('inbox_drop', v_missed);
    return v_count;
exception when lock_not_available then
    return 0;
end
$$;
revoke execute on function pgonce._drop_inbox_partitions() from public;
