-- pgonce._advance_partition(p_consumer, p_source, p_partition, p_epoch, p_from, p_from_minor, p_to, p_to_minor, p_lease,
--          p_tenant): a batch of an ordered source is applied. To be called in the transaction of its
--          effects: one row for the whole batch is all that remembers it.
-- locks    the cursor
-- writes   its position, and its lease anew
-- raises   P4012 the epoch does not hold the partition, or it is not at p_from: roll back, the effects are
--          somebody else's; 22023 p_to is not after p_from
create or replace function pgonce._advance_partition(p_consumer text, p_source text, p_partition text, p_epoch bigint,
    p_from bigint, p_from_minor bigint, p_to bigint, p_to_minor bigint, p_lease interval, p_tenant text default '')
returns void
language plpgsql volatile
as $$
begin
    if p_to is not null and p_to_minor is not null and (p_from is null or (p_to, p_to_minor) > (p_from, p_from_minor))
        and pgonce._force_durable_commit() then
        update pgonce.inbox_cursor c
           set position = p_to, minor = p_to_minor, moved_at = pgonce.now(), lease_until = pgonce.now() + p_lease
         where c.tenant = p_tenant and c.consumer = p_consumer and c.source = p_source and c.partition = p_partition
           and c.epoch = p_epoch and c.position is not distinct from p_from and c.minor is not distinct from p_from_minor
           and p_epoch >= pgonce._timeline() << 41;
        if not found then
            perform pgonce._raise_cursor_fenced(p_consumer, p_source, p_partition, p_epoch, p_tenant);
        end if;
        return;
    end if;
    raise exception 'a partition moves forward, not from % to %', coalesce(p_from || '-' || p_from_minor, 'none'),
        coalesce(p_to || '-' || p_to_minor, 'none') using errcode = '22023',
        hint = 'Leave out what is not after the position that pgonce._lease_partition answered.';
end
$$;
