-- pgonce._begin_epoch(p_above, p_tenant): begins a new epoch of the installation.
-- answers  the epoch, higher than p_above and than every epoch that this database knows: days since 2026 where
--          that is higher, so that installations that know nothing of each other differ; a step for each timeline,
--          since a standby that takes over may not have seen the epochs that began before. In a region its rest by 64 is
--          the region's number, and steps are 64: so no two regions share a fence
-- locks    the row of pgonce.installation, where nobody else has: sessions that come while the first has not
--          committed find the same epoch by themselves and wait for nobody
-- writes   that row
-- note     with the owner's rights: any session may be the first after a failover
create or replace function pgonce._begin_epoch(p_above bigint, p_tenant text default '')
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_life     bigint := pgonce._database_life();
    v_timeline bigint := pgonce._timeline();
    v_row      pgonce.installation;
    v_epoch    bigint;
    v_region   bigint := (select r.id from pgonce.region r where r.is_self);
begin
    select i.* into v_row from pgonce.installation i;
    if v_row.life = v_life and v_row.timeline = v_timeline and v_row.epoch > p_above then
        return v_row.epoch;
    end if;
    v_epoch := greatest(extract(epoch from clock_timestamp() - timestamptz '2026-01-01 00:00:00+00')::bigint / 86400,
        p_above + 1,
        coalesce(v_row.epoch, 0) + greatest(v_timeline - coalesce(v_row.timeline, 0), 1) * case when v_region is null then 1 else 64 end);
    if v_region is not null then
        v_epoch := v_epoch + (v_region - v_epoch % 64 + 64) % 64;
    end if;
    if v_row.epoch is null then
        insert into pgonce.installation (life, timeline, epoch, since)
        values (v_life, v_timeline, v_epoch, clock_timestamp())
        on conflict on constraint one_installation do nothing;
    else
        perform from pgonce.installation i for update skip locked;
        if found then
            update pgonce.installation i
               set life = v_life, timeline = v_timeline, since = clock_timestamp(), epoch = greatest(v_epoch, i.epoch);
        end if;
    end if;
    return v_epoch;
end
$$;
revoke execute on function pgonce._begin_epoch(bigint, text) from public;
