-- pgonce._lease_fence(p_last, p_tenant): the number of a new lease, higher than p_last.
-- answers  twice a number that begins with the epoch of the installation and ends with pgonce.lease_number, below
--          2^53 for as long as clients may care
-- writes   takes a number from pgonce.lease_number; begins a new epoch where p_last shows that another
--          installation gave out higher numbers
create or replace function pgonce._lease_fence(p_last bigint, p_tenant text default '')
returns bigint
language plpgsql volatile
as $$
declare
    v_life   bigint := pgonce._database_life();
    v_number bigint := pgonce._lease_number(pgonce._installation_epoch(v_life, p_tenant), v_life);
begin
    if v_number operator(pg_catalog.<=) p_last then
        v_number := pgonce._lease_number(pgonce._begin_epoch(p_last operator(pg_catalog.>>) 37, p_tenant), v_life);
    end if;
    return v_number;
end
$$;
