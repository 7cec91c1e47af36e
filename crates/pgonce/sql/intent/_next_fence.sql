-- pgonce._next_fence(p_last, p_leased, p_tenant): the number of the next attempt, higher than p_last.
-- answers  odd for an attempt that lives in one transaction, even for a lease. So the number an
--          atomic attempt was given, which a rollback takes away again, can never be the
--          number of a lease.
-- writes   takes a number from pgonce.lease_number for a lease: no two leases ever share a fence,
--          not even when the record between them was purged
-- note     a lease's number starts with the epoch of the installation: after a failover to a standby that had
--          not seen the last claims, or a restore, new numbers are still higher than any lost one
create or replace function pgonce._next_fence(p_last bigint, p_leased boolean, p_tenant text default '')
returns bigint
language sql volatile
return case
    when p_leased then pgonce._lease_fence(coalesce(p_last, 0), p_tenant)
    else (coalesce(p_last, 0) + 1) / 2 * 2 + 1
end;
