-- pgonce._lease_partition(p_consumer, p_source, p_partition, p_owner, p_lease, p_tenant): a worker takes over a
--          partition of an ordered source.
-- answers  its new epoch and how far the partition is applied, null: nothing yet. No row: another worker has
--          moved it, or taken it, within its lease; ask again later
-- locks    the cursor: waits for a batch of the worker before to end
-- writes   a higher epoch: what the worker before still has in hand cannot be committed any more
-- raises   22023 a name or a lease that does not fit
create or replace function pgonce._lease_partition(p_consumer text, p_source text, p_partition text, p_owner text,
    p_lease interval, p_tenant text default pgonce._own_tenant())
returns table (epoch bigint, "position" bigint, minor bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
        and octet_length(p_tenant) <= 255) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, 'x', p_tenant);
    elsif (octet_length(p_partition) <= 255 and octet_length(p_owner) >= 1 and p_lease > interval '0') is not true then
        raise exception 'a partition has a name of at most 255 bytes, its worker a name, and a lease that is positive'
            using errcode = '22023', hint = 'For example: pgonce._lease_partition(''billing'', ''kafka:orders'', ''7'', ''host-7'', ''10 s'').';
    end if;
    perform pgonce._force_durable_commit();
    insert into pgonce.inbox_cursor as c (tenant, consumer, source, partition, epoch, moved_at)
    values (p_tenant, p_consumer, p_source, p_partition, 0, pgonce.now())
    on conflict on constraint one_cursor_per_partition do nothing;
    perform from pgonce.inbox_cursor c
      where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
        for update;
    return query
        update pgonce.inbox_cursor c
           set epoch = pgonce._next_fence(c.epoch, true), owner = p_owner, lease_until = pgonce.now() + p_lease
         where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
           and (c.owner is null or c.owner = p_owner or c.lease_until <= pgonce.now()
                or c.epoch < pgonce._first_fence())
        returning c.epoch, c.position, c.minor;
end
$$;
