-- pgonce._begin_epoch(p_above): begins a new epoch of the installation, unless another session just did.
-- answers  the epoch, higher than p_above and than every epoch that this database knows: days since 2026 where
--          that is higher, so that installations that know nothing of each other differ
-- locks    the row of pgonce.installation
-- writes   that row; moves pgonce.lease_number forward at random, so that two copies that were restored from
--          one dump on one day differ too
-- note     with the owner's rights: any session may be the first after a failover
create or replace function pgonce._begin_epoch(p_above bigint)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_epoch bigint;
begin
    insert into pgonce.installation as i (life, timeline, epoch, since)
    values (pgonce._database_life(), pgonce._timeline(),
        greatest(extract(epoch from clock_timestamp() - timestamptz '2026-01-01 00:00:00+00')::bigint / 86400, p_above + 1, 1),
        clock_timestamp())
    on conflict on constraint one_installation do update
       set life = excluded.life, timeline = excluded.timeline, since = excluded.since,
           epoch = greatest(excluded.epoch, i.epoch + 1)
     where (i.life, i.timeline) is distinct from (excluded.life, excluded.timeline) or i.epoch <= p_above
    returning i.epoch into v_epoch;
    if found then
        perform setval('pgonce.lease_number', nextval('pgonce.lease_number') + 1048576 + (random() * 268435456)::bigint);
    else
        select i.epoch into strict v_epoch from pgonce.installation i;
    end if;
    return v_epoch;
end
$$;
revoke execute on function pgonce._begin_epoch(bigint) from public;
