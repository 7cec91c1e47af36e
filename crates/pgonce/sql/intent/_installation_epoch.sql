-- pgonce._installation_epoch(p_life, p_tenant): the epoch of this installation. It grows where the server's timeline is another,
--          and where the database came here by dump and restore, upgrade or logical replication.
-- writes   a new epoch, where it is the first to notice
-- note     p_life is pgonce._database_life() where the caller knows it already. One epoch for all tenants, except on Citus,
--          where citus/_installation_epoch.sql replaces it
create or replace function pgonce._installation_epoch(p_life bigint default null, p_tenant text default '')
returns bigint
language plpgsql volatile
as $$
declare
    v_epoch bigint;
begin
    select i.epoch into v_epoch from pgonce.installation i
     where i.one and i.life operator(pg_catalog.=) coalesce(p_life, pgonce._database_life())
       and i.timeline operator(pg_catalog.=) pgonce._timeline();
    if not found then
        v_epoch := pgonce._begin_epoch(0, p_tenant);
    end if;
    return v_epoch;
end
$$;
