-- pgonce.unread(p_seq, p_xid, p_place, p_base_seq): is an event still to be read by who is at this place?
-- note     inlined
create or replace function pgonce.unread(p_seq bigint, p_xid xid8, p_place pgonce.outbox_place, p_base_seq bigint)
returns boolean
language sql immutable parallel safe
return p_seq > (p_place).floor and not pg_visible_in_snapshot(p_xid, (p_place).seen)
    and ((p_place).upto is null or p_seq > (p_place).after
         or p_seq > p_base_seq and not pg_visible_in_snapshot(p_xid, (p_place).upto));
