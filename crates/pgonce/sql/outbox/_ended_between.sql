-- pgonce._ended_between(p_seen, p_now): which transactions ended between two snapshots.
-- answers  spans of transaction ids, both ends excluded, that leave out who is at work for p_now, or
--          at least the 32 oldest of these: their events, which may be many, cannot be read yet and
--          need not be passed by. Never leaves out one that ended.
-- note     inlined into the statements that call it. Ids from another server fit no span: for the
--          snapshot that sees nothing there is one span of everything.
create or replace function pgonce._ended_between(p_seen pg_snapshot, p_now pg_snapshot)
returns table (above xid8, below xid8)
language sql stable
begin atomic
    select (x::text::bigint - 1)::text::xid8, (x::text::bigint + 1)::text::xid8
      from pg_snapshot_xip(p_seen) x where pg_visible_in_snapshot(x, p_now)
    union all
    select s.above, s.below
      from (select b.x as above, lead(b.x, 1, case when pg_snapshot_xmax(p_seen) = '1' then '18446744073709551615'
                       else pg_snapshot_xmax(p_now) end) over (order by b.x) as below
              from (select (pg_snapshot_xmax(p_seen)::text::bigint - 1)::text::xid8 as x
                    union all
                    (select x from pg_snapshot_xip(p_now) x
                      where x >= pg_snapshot_xmax(p_seen) and pg_snapshot_xmax(p_seen) <> '1' order by x limit 32)) b) s
     where s.above < s.below;
end;
