-- pgonce._is_in_window(p_seq, p_xid, p_seen, p_upto, p_base_seq): is an event one that p_seen did not see and p_upto does?
-- note     inlined
create or replace function pgonce._is_in_window(p_seq bigint, p_xid xid8, p_seen pg_snapshot, p_upto pg_snapshot, p_base_seq bigint)
returns boolean
language sql immutable parallel safe
-- The short comparisons settle most: a look into the list of a snapshot costs more.
return (p_xid >= pg_snapshot_xmax(p_seen) or not pg_visible_in_snapshot(p_xid, p_seen))
    and (p_xid < pg_snapshot_xmin(p_upto) or p_seq <= p_base_seq or pg_visible_in_snapshot(p_xid, p_upto));
