-- pgonce._rebase_outbox(): where the log came here by dump and restore, makes its cursors fit this
--          server. To be called first in a transaction.
-- answers  true where it did
-- locks    the row of pgonce.outbox_state
-- writes   every cursor begins anew above what was surely over: nothing is skipped, some events
--          come twice with the same id. Leases are void.
-- raises   25001 the transaction has written already, so that nothing is known about numbers
-- note     a failover or a crash needs none of this: cursors and log are of one moment there, and
--          what a cursor calls seen was in the write-ahead log before the cursor was
create or replace function pgonce._rebase_outbox()
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_here bigint := pgonce._system_identifier();
    v_last bigint;
begin
    if exists (select from pgonce.outbox_state l where l.system_identifier = v_here) then
        return false;
    elsif pg_current_xact_id_if_assigned() is not null then
        raise exception 'the log came from another server: its cursors must be re-based first'
            using errcode = '25001', hint = 'Call pgonce._rebase_outbox() at the start of a transaction.';
    end if;
    v_last := coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0);
    update pgonce.outbox_state l
       set system_identifier = v_here, base_seq = v_last,
           -- A transaction that has drawn a number up to here and has not ended holds this lock.
           base_waits = array(select k.virtualtransaction from pg_locks k
                               where k.relation = 'pgonce.outbox'::regclass and k.mode = 'RowExclusiveLock'
                                 and k.database = (select d.oid from pg_database d where d.datname = current_database()))
     where l.system_identifier is distinct from v_here;
    if not found then
        return false;  -- somebody was faster
    end if;
    delete from pgonce.outbox_watermark m;
    insert into pgonce.outbox_watermark (xid, seq, at) values (pg_current_xact_id(), v_last, pgonce.now());
    update pgonce.outbox_cursor c
       set cursor = row((c.cursor).floor, '1:1:', null, null)::pgonce.outbox_position, owner = null, lease_until = null;
    delete from pgonce.outbox_relay r;
    return true;
end
$$;
