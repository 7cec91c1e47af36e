-- pgonce._count_suppressed(...): adds up duplicates that were turned away. A replay writes nothing,
--          so sessions count for themselves and report now and then.
-- writes   one row of pgonce.suppressed
create or replace function pgonce._count_suppressed(p_scope text, p_replays bigint, p_refusals bigint,
    p_busy bigint, p_conflicts bigint, p_tenant text default '')
returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    insert into pgonce.suppressed as s (tenant, scope, replays, refusals, busy, conflicts)
    values (p_tenant, p_scope, p_replays, p_refusals, p_busy, p_conflicts)
    on conflict (tenant, scope) do update
       set replays = s.replays + excluded.replays, refusals = s.refusals + excluded.refusals,
           busy = s.busy + excluded.busy, conflicts = s.conflicts + excluded.conflicts;
end;
