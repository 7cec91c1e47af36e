-- pgonce._is_lease(p_fence): is this the fence of a lease?
-- note     inlined
create or replace function pgonce._is_lease(p_fence bigint)
returns boolean
language sql immutable parallel safe
return p_fence % 2 = 0;
