-- pgonce._renew_partition(p_consumer, p_source, p_partition, p_epoch, p_lease, p_tenant): a worker that has a batch in hand
--          still holds its partition.
-- answers  true: its lease begins anew; false: another worker has it
-- locks    the cursor, for a moment
-- writes   the end of the lease, under the epoch
create or replace function pgonce._renew_partition(p_consumer text, p_source text, p_partition text, p_epoch bigint,
    p_lease interval, p_tenant text default pgonce._own_tenant())
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update pgonce.inbox_cursor c set lease_until = pgonce.now() + p_lease
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C"
       and c.partition = p_partition collate "C"
       and c.epoch = p_epoch and p_epoch >= pgonce._first_fence();
    return found;
end
$$;
