-- pgonce._outbox_floor(p_seen): how much of the log is over for a reader that has done what p_seen sees.
-- answers  a number: transactions still open for p_seen have only numbers above it
create or replace function pgonce._outbox_floor(p_seen pg_snapshot)
returns bigint
language sql stable
return coalesce((select m.seq from pgonce.outbox_watermark m
                  where m.xid <= pg_snapshot_xmin(p_seen) order by m.xid desc limit 1), 0);
