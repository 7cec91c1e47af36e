-- 0014_kept_markers: what an application writes by itself is from now, so that it cannot be kept for ever or stop those who reckon with
-- its time; and counts that no sum fits are cut.
-- breaking: no

-- The routine of this name comes later; the policies need to know that there is one.
create or replace function pgonce.now() returns timestamptz language sql volatile parallel safe return clock_timestamp();

-- Not where the tables are distributed already: there are no roles for parts, and nobody adds the counts up.
do $$ begin
    if to_regclass('pgonce.tenant_epoch') is not null then
        return;
    end if;
    -- As pgonce._count_suppressed counts from now on.
    update pgonce.suppressed s
       set replays = greatest(least(s.replays, 1000000000000000), 0), refusals = greatest(least(s.refusals, 1000000000000000), 0),
           busy = greatest(least(s.busy, 1000000000000000), 0), conflicts = greatest(least(s.conflicts, 1000000000000000), 0)
     where greatest(s.replays, s.refusals, s.busy, s.conflicts) > 1000000000000000 or least(s.replays, s.refusals, s.busy, s.conflicts) < 0;
    -- A minute, since a server's clock may be set back between the two readings.
    alter policy marked_now on pgonce.inbox_marker
        with check (accepted_at > '-infinity' and accepted_at < pgonce.now() + interval '1 minute');
    alter policy numbered_here on pgonce.outbox
        with check (xid = pg_current_xact_id() and seq = currval('pgonce.outbox_seq')
            and created_at > '-infinity' and created_at < pgonce.now() + interval '1 minute'
            and size >= 0 and lane between 0 and 15 and jsonb_typeof(headers) = 'object');
end $$;
