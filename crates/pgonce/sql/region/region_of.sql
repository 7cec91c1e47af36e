-- pgonce.region_of(p_scope, p_key, p_tenant): the home of an intent.
-- answers  one row: its name, the address of its services, and whether it is this region; nulls where regions are not used
-- locks    nothing
-- writes   nothing
-- raises   nothing
-- example  select name, address, is_self from pgonce.region_of('orders.create', 'order-7');
create or replace function pgonce.region_of(p_scope text, p_key text, p_tenant text default '')
returns table (name text, address text, is_self boolean, mode text)
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select r.name, r.address, r.is_self, h.mode from pgonce._home_of(p_tenant, p_scope, p_key) h
      left join pgonce.region r on r.id = h.home;
end;
