-- pgonce._advance_partition(p_consumer, p_source, p_partition, p_epoch, p_from, p_from_minor, p_to, p_to_minor, p_lease,
--          p_tenant): a batch of an ordered source is applied. To be called in the transaction of its
--          effects: one row for the whole batch is all that remembers it.
-- locks    the cursor
-- writes   its position, and its lease anew
-- raises   P4012 the epoch does not hold the partition, or it is not at p_from: roll back, the effects are
--          somebody else's; 22023 p_to is not after p_from
create or replace function pgonce._advance_partition(p_consumer text, p_source text, p_partition text, p_epoch bigint,
    p_from bigint, p_from_minor bigint, p_to bigint, p_to_minor bigint, p_lease interval, p_tenant text default pgonce._own_tenant())
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if pgonce._is_after(p_to, p_to_minor, p_from, p_from_minor) and pgonce._force_durable_commit() then
        update pgonce.inbox_cursor c
           set position = p_to, minor = p_to_minor, moved_at = pgonce.now(),
               lease_until = pgonce.now() operator(pg_catalog.+) p_lease
         where c.tenant operator(pg_catalog.=) p_tenant collate "C" and c.consumer operator(pg_catalog.=) p_consumer collate "C"
           and c.source operator(pg_catalog.=) p_source collate "C" and c.partition operator(pg_catalog.=) p_partition collate "C"
           and c.epoch operator(pg_catalog.=) p_epoch and pgonce._is_at(c.position, c.minor, p_from, p_from_minor)
           and p_epoch operator(pg_catalog.>=) pgonce._first_fence();
        if not found then
            perform pgonce._raise_cursor_fenced(p_consumer, p_source, p_partition, p_epoch, p_tenant);
        end if;
        return;
    end if;
    raise exception 'a partition moves forward, not from %-% to %-%', p_from, p_from_minor, p_to, p_to_minor
        using errcode = '22023',
        hint = 'Leave out what is not after the position that pgonce._lease_partition answered.';
end
$$;
