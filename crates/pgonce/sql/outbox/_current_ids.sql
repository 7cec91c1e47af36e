-- pgonce._current_ids(): how far this server is with its transaction ids.
-- answers  one row. next: the end of the snapshot of now, above every id that has ended; old: two billion before it, since a row's
--          xmin has 32 bits and says nothing of what is older; beyond: above every id that was given out
-- note     inlined into the statements that call it, so that the snapshot is the one that they see by
create or replace function pgonce._current_ids()
returns table (next xid8, old xid8, beyond xid8)
language sql stable
begin atomic
    select x.next, greatest(x.next::text::bigint - 2147483648, 0)::text::xid8,
           (x.next::text::bigint + greatest(age(x.next::xid), 0))::text::xid8
      from (select pg_snapshot_xmax(pg_current_snapshot()) as next offset 0) x offset 0;
end;
