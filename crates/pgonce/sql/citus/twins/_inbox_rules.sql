-- pgonce._inbox_rules on Citus: as inbox/_inbox_rules.sql. Citus plans no SQL function by its arguments.
create or replace function pgonce._inbox_rules(p_consumer text, p_tenant text default '')
returns pgonce.inbox_contract
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.inbox_contract;
begin
    select c.* into v_contract from pgonce.inbox_contract c
     where c.tenant in ('', p_tenant) and c.consumer in ('*', p_consumer)
       and (c.tenant = '' or c.consumer = p_consumer)
     order by c.consumer = p_consumer desc, c.tenant = p_tenant desc limit 1;
    return v_contract;
end
$$;
