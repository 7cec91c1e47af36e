-- pgonce.lane_window(p_lane, p_place, p_last, p_base_seq): the events of a window that is walked in pages:
--          those of one lane after the place, up to the number p_last.
-- note     inlined into the statements that call it, which is why it is labelled stable
create or replace function pgonce.lane_window(p_lane smallint, p_place pgonce.outbox_place, p_last bigint,
    p_base_seq bigint)
returns setof pgonce.outbox
language sql stable
begin atomic
    select o.*
      from pgonce.outbox o
     where o.lane = p_lane and o.seq > (p_place).after and o.seq <= p_last
       -- The short comparisons settle most: a look into the list of a snapshot costs more.
       and (o.xid >= pg_snapshot_xmax((p_place).seen) or not pg_visible_in_snapshot(o.xid, (p_place).seen))
       and (o.xid < pg_snapshot_xmin((p_place).upto) or o.seq <= p_base_seq
            or pg_visible_in_snapshot(o.xid, (p_place).upto));
end;
