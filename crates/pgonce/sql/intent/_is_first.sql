-- pgonce._is_first(p_fence): is this the fence of an atomic attempt that found no record?
-- note     inlined
create or replace function pgonce._is_first(p_fence bigint)
returns boolean
language sql immutable parallel safe
return p_fence = 1;
