-- pgonce._installation_epoch on Citus: one epoch for each tenant, which moves with the tenant's rows: the numbers of a
--          server mean nothing on the next.
create or replace function pgonce._installation_epoch(p_life bigint default null, p_tenant text default '')
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_epoch    bigint;
    v_life     bigint := coalesce(p_life, pgonce._database_life());
    v_timeline bigint := pgonce._timeline();
begin
    select e.epoch into v_epoch from pgonce.tenant_epoch e
     where e.tenant = p_tenant and e.life = v_life and e.timeline = v_timeline;
    if not found then
        v_epoch := pgonce._begin_epoch(0, p_tenant);
    end if;
    return v_epoch;
end
$$;
