-- pgonce._begin_epoch on Citus: as intent/_begin_epoch.sql, for one tenant.
-- note     after a move to another server it grows by the whole number of that server's timeline: where the server then
--          fails over to a standby that has not seen the move's first epoch, the next one is higher still
create or replace function pgonce._begin_epoch(p_above bigint, p_tenant text default '')
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_life     bigint := pgonce._database_life();
    v_timeline bigint := pgonce._timeline();
    v_at       timestamptz := clock_timestamp();
    v_row      pgonce.tenant_epoch;
    v_epoch    bigint;
begin
    select e.* into v_row from pgonce.tenant_epoch e where e.tenant = p_tenant for update;
    if v_row.life = v_life and v_row.timeline = v_timeline and v_row.epoch > p_above then
        return v_row.epoch;
    end if;
    v_epoch := greatest(extract(epoch from v_at - timestamptz '2026-01-01 00:00:00+00')::bigint / 86400, p_above + 1,
        coalesce(v_row.epoch, 0) + case when v_row.life = v_life then greatest(v_timeline - v_row.timeline, 1) else v_timeline end);
    insert into pgonce.tenant_epoch as e (tenant, life, timeline, epoch, since)
    values (p_tenant, v_life, v_timeline, v_epoch, v_at)
    on conflict (tenant) do update set life = excluded.life, timeline = excluded.timeline, since = excluded.since,
        epoch = greatest(e.epoch, excluded.epoch)
    returning e.epoch into v_epoch;
    return v_epoch;
end
$$;
