-- pgonce._lane_window(p_lane, p_after, p_last, p_seen, p_upto, p_base_seq): the events of a window that
--          is walked in pages: those of one lane after one number and up to another, that p_seen did
--          not see and p_upto does.
-- note     inlined into the statements that call it, which is why it is labelled stable
create or replace function pgonce._lane_window(p_lane smallint, p_after bigint, p_last bigint, p_seen pg_snapshot,
    p_upto pg_snapshot, p_base_seq bigint)
returns setof pgonce.outbox
language sql stable
begin atomic
    select o.*
      from pgonce.outbox o
     where o.lane = p_lane and o.seq > p_after and o.seq <= p_last
       and pgonce._is_in_window(o.seq, o.xid, p_seen, p_upto, p_base_seq);
end;
