-- pgonce._lease_number(p_epoch, p_life): an even number that was never given out, of this epoch.
-- writes   takes a number from pgonce.lease_number
-- note     inlined. It begins at another place in every life of the database, so that two copies that were restored
--          from one dump on one day differ. On Citus each server has a range of the sequence, far above 2^36
create or replace function pgonce._lease_number(p_epoch bigint, p_life bigint)
returns bigint
language sql volatile
return ((p_epoch << 36) + (hashint8(p_life) & 268435455) + (nextval('pgonce.lease_number') & 68719476735)) * 2;
