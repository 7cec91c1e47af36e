-- pgonce._projection_lock(p_projection, p_tenant): the advisory lock that those who apply events to a projection
--          share, and the one who replaces it holds alone.
create or replace function pgonce._projection_lock(p_projection text, p_tenant text)
returns bigint
language sql immutable parallel safe
return pgonce._lock_id(p_tenant, 'pgonce.projection', p_projection);
