-- pgonce._snapshot_is_foreign(p_seen, p_writer, p_next, p_old): whether a snapshot that a row holds was taken on another server.
-- answers  true: it calls ids ended that have not ended here, or the row's writer (its xmin) is older than all that the snapshot
--          waits for, and would have ended before it wrote. A row that came by replication was written by a transaction of
--          this server, whatever ids it holds
-- note     inlined, which is why it is labelled stable; p_next and p_old are of pgonce._current_ids
create or replace function pgonce._snapshot_is_foreign(p_seen pg_snapshot, p_writer xid, p_next xid8, p_old xid8)
returns boolean
language sql stable
return pg_snapshot_xmax(p_seen) > p_next
    or pg_snapshot_xmax(p_seen) > p_old and age(p_writer) > age(pg_snapshot_xmin(p_seen)::xid);
