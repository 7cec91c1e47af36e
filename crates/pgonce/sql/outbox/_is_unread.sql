-- pgonce._is_unread(p_seq, p_xid, p_cursor, p_base_seq): is an event still to be read by who is at this cursor?
-- note     inlined
create or replace function pgonce._is_unread(p_seq bigint, p_xid xid8, p_cursor pgonce.outbox_position, p_base_seq bigint)
returns boolean
language sql immutable parallel safe
return p_seq > (p_cursor).floor and not pg_visible_in_snapshot(p_xid, (p_cursor).seen)
    and ((p_cursor).upto is null or p_seq > (p_cursor).after
         or p_seq > p_base_seq and not pg_visible_in_snapshot(p_xid, (p_cursor).upto));
