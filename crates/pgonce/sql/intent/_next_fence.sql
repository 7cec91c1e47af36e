-- pgonce._next_fence(p_last, p_leased): the number of the next attempt, higher than p_last.
-- answers  odd for an attempt that lives in one transaction, even for a lease. So the number an
--          atomic attempt was given, which a rollback takes away again, can never be the
--          number of a lease.
-- writes   takes a number from pgonce.lease_number for a lease: no two leases ever share a fence,
--          not even when the record between them was purged
-- note     a lease's number starts with the server's timeline: after a failover to a standby
--          that had not seen the last claims, new numbers are still higher than any lost one
create or replace function pgonce._next_fence(p_last bigint, p_leased boolean)
returns bigint
language sql volatile
return case
    when p_leased then greatest(coalesce(p_last, 0) / 2,
        (pgonce._timeline() << 40) + nextval('pgonce.lease_number')) * 2 + 2
    else (coalesce(p_last, 0) + 1) / 2 * 2 + 1
end;
