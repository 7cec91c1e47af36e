-- pgonce._outbox_floor(p_seen): how much of the log is over for whoever has done what p_seen sees.
-- answers  a number: whoever was still at work for p_seen has only numbers above it
create or replace function pgonce._outbox_floor(p_seen pg_snapshot)
returns bigint
language sql stable
return coalesce((select m.seq from pgonce.outbox_watermark m
                  where m.xid <= pg_snapshot_xmin(p_seen) order by m.xid desc limit 1), 0);
