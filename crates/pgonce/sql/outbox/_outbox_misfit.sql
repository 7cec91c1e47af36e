-- pgonce._outbox_misfit(): what of the log does not fit this server, although the life of the database is the same.
-- answers  ids: cursors, marks or events have transaction ids of another server, in the history of one server it cannot be; so
--          it is where a physical copy went on by logical replication, as a green database beside the blue. numbers: a cursor is
--          beyond everything that was published. null: all fits
-- note     each claim asks it: it looks at the cursors, the newest mark and the ends of the newest indexes. What a transaction
--          wrote that is open, or this one, is left out
create or replace function pgonce._outbox_misfit()
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_own xid8 := pg_current_xact_id_if_assigned();
begin
    -- One statement: the ids are of the moment whose rows it sees, the last number is from after it.
    return (
        select case when c.foreign_ids
                      or exists (select from (select m.xid, m.xmin as writer from pgonce.outbox_watermark m
                                               where m.xid is distinct from v_own order by m.xid desc limit 1) m
                                  where pgonce._id_is_foreign(m.xid, m.writer, n.next, n.old))
                      or exists (select from pgonce.outbox o
                                  where o.xid > n.beyond and o.xid is distinct from v_own
                                    and o.seq > (select greatest(l.base_seq, n.last - l.partition_rows) from pgonce.outbox_state l)) then 'ids'
                    when c.above then 'numbers' end
          from (select i.*, case when q.is_called then q.last_value else 0 end as last
                  from pgonce._current_ids() i cross join pgonce.outbox_seq q offset 0) n
         cross join lateral (
               select bool_or(pgonce._snapshot_is_foreign(s.seen, s.writer, n.next, n.old)) as foreign_ids, bool_or(s.floor > n.last) as above
                 -- The offset: each is taken out of its row once.
                 from (select (x.cursor).floor, coalesce((x.cursor).upto, (x.cursor).seen) as seen, x.xmin as writer
                         from pgonce.outbox_cursor x offset 0) s) c);
end
$$;
