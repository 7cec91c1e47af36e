-- pgonce._rebase_outbox(): where the log came here by dump and restore or by replication, or a cursor is beyond everything that
--          was published, makes the cursors fit this life of the database. To be called first in a transaction.
-- answers  true where it did
-- locks    where it does: the row of pgonce.outbox_state, and as pgonce._advance_outbox_seq
-- writes   from another server every cursor begins anew above what was surely over: nothing is skipped, some events
--          come twice with the same id. Leases are void. In the same life of the database only a cursor that is beyond
--          everything begins anew, at the start: the others fit, and writers who are at work have numbers below the last.
--          The sequence, where it is behind
-- raises   25001 the transaction has written already, so that nothing is known about numbers; 55P03 as pgonce._advance_outbox_seq
-- note     a failover or a crash needs none of this: cursors and log are of one moment there, and
--          what a cursor calls seen was in the write-ahead log before the cursor was
create or replace function pgonce._rebase_outbox()
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_here    bigint := pgonce._database_life();
    v_last    bigint;
    v_before  bigint;
    v_base    bigint;
    v_misfit  text;
    v_drawn   bigint;
    v_marked  bigint;
begin
    for v_look in 1..2 loop
        select l.database_life, l.base_seq into v_before, v_base from pgonce.outbox_state l;
        v_misfit := case when v_before is distinct from v_here then 'ids' else pgonce._outbox_misfit() end;
        if v_misfit is null then
            return false;
        elsif v_look = 2 then
            exit;
        elsif pg_current_xact_id_if_assigned() is not null then
            raise exception 'the log came from another database: its cursors must be re-based first'
                using errcode = '25001', hint = 'Call pgonce._rebase_outbox() at the start of a transaction.';
        end if;
        -- Locked, then looked at once more: somebody may have been faster.
        perform from pgonce.outbox_state l for update;
    end loop;
    select case when s.is_called then s.last_value else s.last_value - 1 end into v_drawn from pgonce.outbox_seq s;
    v_last := pgonce._advance_outbox_seq();
    if v_misfit = 'numbers' then
        update pgonce.outbox_cursor c
           set cursor = row(0, '1:1:', null, null)::pgonce.outbox_position, owner = null, lease_until = null
         where (c.cursor).floor > v_drawn;
        return true;
    end if;
    update pgonce.outbox_state l
       set database_life = v_here, base_seq = v_last,
           -- Writers who have drawn a number up to here and have not ended hold this lock. So does this transaction, where it has
           -- written copies: they are there for everyone who learns of the new base.
           base_waits = array(select k.virtualtransaction from pg_locks k
                               where k.relation = 'pgonce.outbox'::regclass and k.mode = 'RowExclusiveLock'
                                 and k.pid is distinct from pg_backend_pid()
                                 and k.database = (select d.oid from pg_database d where d.datname = current_database()));
    if v_before is not null then
        raise warning 'the outbox came here by dump and restore or by replication: its subscriptions begin anew above what is surely delivered'
            using detail = format('Events up to number %s are from before. Some are delivered again, with the same ids.', v_last);
    end if;
    -- Up to this number everything is from before, so that the old snapshots still show what is read.
    if v_before = v_here then
        -- Only rows of the other server say so: others may have been written here since.
        select least(v_last, greatest(
                   (select max(c.published) from pgonce.outbox_cursor c
                     where pgonce._snapshot_is_foreign(coalesce((c.cursor).upto, (c.cursor).seen), c.xmin, n.next, n.old)),
                   (select max(m.seq) from pgonce.outbox_watermark m where pgonce._id_is_foreign(m.xid, m.xmin, n.next, n.old)))) into v_marked
          from pgonce._current_ids() n;
    else
        select least(v_last, greatest(max(c.published), (select max(m.seq) from pgonce.outbox_watermark m))) into v_marked
          from pgonce.outbox_cursor c;
    end if;
    update pgonce.outbox_cursor c
       set cursor = row(case when (c.cursor).floor > v_last then 0
               else greatest((c.cursor).floor, least(v_marked, (select min(o.seq) - 1 from pgonce.outbox o
                    where o.lane = c.lane and o.seq <= v_marked and pgonce._is_unread(o.seq, o.xid, c.cursor, v_base)))) end,
               '1:1:', null, null)::pgonce.outbox_position,
           owner = null, lease_until = null;
    delete from pgonce.outbox_watermark m;
    insert into pgonce.outbox_watermark (xid, seq, at) values (pg_current_xact_id(), v_last, pgonce.now());
    delete from pgonce.outbox_relay r;
    return true;
end
$$;
