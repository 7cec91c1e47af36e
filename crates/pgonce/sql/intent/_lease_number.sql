-- pgonce._lease_number(p_epoch): an even number that was never given out, of this epoch.
-- writes   takes a number from pgonce.lease_number
-- note     inlined
create or replace function pgonce._lease_number(p_epoch bigint)
returns bigint
language sql volatile
return ((p_epoch << 36) + nextval('pgonce.lease_number')) * 2;
