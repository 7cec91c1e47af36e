-- pgonce._first_fence(p_tenant): leases below this number are from before a failover, a restore or an upgrade: what they
--          hold may have been taken over by a claim that was lost.
create or replace function pgonce._first_fence(p_tenant text default '')
returns bigint
language sql volatile
return pgonce._installation_epoch(null, p_tenant) << 37;
