-- pgonce._count_suppressed(...): adds up duplicates that were turned away. A replay writes nothing,
--          so sessions count for themselves and report now and then.
-- writes   one row of pgonce.suppressed
-- note     applications call it: a report counts from 0 to a billion, and no count goes beyond 10^15, so that sums of them fit whatever
--          is reported
create or replace function pgonce._count_suppressed(p_scope text, p_replays bigint, p_refusals bigint,
    p_busy bigint, p_conflicts bigint, p_tenant text default '')
returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    insert into pgonce.suppressed as s (tenant, scope, replays, refusals, busy, conflicts)
    values (p_tenant, p_scope,
        least(greatest(coalesce(p_replays, 0), 0), 1000000000), least(greatest(coalesce(p_refusals, 0), 0), 1000000000),
        least(greatest(coalesce(p_busy, 0), 0), 1000000000), least(greatest(coalesce(p_conflicts, 0), 0), 1000000000))
    on conflict (tenant, scope) do update
       set replays = least(s.replays, 999999000000000) + excluded.replays,
           refusals = least(s.refusals, 999999000000000) + excluded.refusals,
           busy = least(s.busy, 999999000000000) + excluded.busy,
           conflicts = least(s.conflicts, 999999000000000) + excluded.conflicts;
end;
