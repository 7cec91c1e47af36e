-- pgonce._fence_is_current(p_row, p_fence, p_now, p_stale): is p_fence the attempt that may settle this row?
-- answers  a lease (even): only while the row is in processing under exactly this fence; until it runs out where it
--          is from before a failover, since a takeover of it may have been lost, and where the contract says
--          refuse, since a claim may have answered that the intent was abandoned.
--          An atomic attempt over an earlier record (odd): only while that record is still the
--          one it was claimed over, failed and retryable, or with a lease that ran out.
create or replace function pgonce._fence_is_current(p_row pgonce.intent, p_fence bigint, p_now timestamptz, p_stale text)
returns boolean
language sql volatile
return case
    when p_fence % 2 = 0 then p_row.status = 'processing' and p_row.fence = p_fence
         and (p_row.lease_until > p_now or p_stale <> 'refuse' and p_fence >= pgonce._first_fence(p_row.tenant))
    else p_fence = pgonce._next_fence(p_row.fence, false)
         and (p_row.status = 'failed_retryable'
              or p_row.status = 'processing' and p_row.lease_until <= p_now and p_stale <> 'refuse')
end;
