-- pgonce._lease_partition(p_consumer, p_source, p_partition, p_owner, p_lease, p_tenant): a worker takes over a
--          partition of an ordered source.
-- answers  its new epoch and how far the partition is applied, null: nothing yet. No row: another worker has
--          moved it, or taken it, within its lease; ask again later
-- locks    the cursor, and those that it is compared with: waits for a batch of the worker before to end
-- writes   an epoch higher than all of theirs: what the worker before still has in hand cannot be committed any more
-- raises   22023 a name or a lease that does not fit; 55000 a session that acts for all tenants: a session that is bound to one took
--          the partition since, and has applied more of it. No position would be right
-- note     a cursor of the empty tenant stands for all tenants. Where the consumer's role was bound to a tenant since it moved, its
--          own cursor goes on from there: what was applied for all was applied for this one
create or replace function pgonce._lease_partition(p_consumer text, p_source text, p_partition text, p_owner text,
    p_lease interval, p_tenant text default pgonce._own_tenant())
returns table (epoch bigint, "position" bigint, minor bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_general pgonce.inbox_cursor;
    v_own     pgonce.inbox_cursor;
    v_other   pgonce.inbox_cursor;
    v_epoch   bigint;
    v_goes_on boolean;
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
        and octet_length(p_tenant) <= 255) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, 'x', p_tenant);
    elsif (octet_length(p_partition) <= 255 and octet_length(p_owner) >= 1 and p_lease > interval '0') is not true then
        raise exception 'a partition has a name of at most 255 bytes, its worker a name, and a lease that is positive'
            using errcode = '22023', hint = 'For example: pgonce._lease_partition(''billing'', ''kafka:orders'', ''7'', ''host-7'', ''10 s'').';
    end if;
    perform pgonce._force_durable_commit();
    if p_tenant <> '' collate "C" then
        -- Before the own one, in the order of all who lock both.
        select c.* into v_general from pgonce.inbox_cursor c
         where c.tenant = '' and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
           for share;
    end if;
    insert into pgonce.inbox_cursor as c (tenant, consumer, source, partition, epoch, moved_at)
    values (p_tenant, p_consumer, p_source, p_partition, 0, pgonce.now())
    on conflict on constraint one_cursor_per_partition do nothing;
    select c.* into strict v_own from pgonce.inbox_cursor c
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
       for update;
    if v_own.owner <> p_owner collate "C" and v_own.lease_until > pgonce.now() and v_own.epoch >= pgonce._first_fence() then
        return;
    end if;
    v_epoch := greatest(v_own.epoch, v_general.epoch);
    if p_tenant = '' collate "C" then
        for v_other in
            select c.* from pgonce.inbox_cursor c
             where c.tenant <> '' and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
             order by c.tenant for share
        loop
            if v_other.epoch > v_own.epoch and pgonce._is_after(v_other.position, v_other.minor, v_own.position, v_own.minor) then
                raise exception 'consumer "%" has applied more of partition "%" of source "%" for a tenant than for all of them',
                    p_consumer, p_partition, p_source using errcode = '55000',
                    detail = format('For tenant "%s" it is at %s-%s, for all at %s. Its role was bound to that tenant, and is no more.',
                        v_other.tenant, v_other.position, v_other.minor, coalesce(v_own.position || '-' || v_own.minor, 'none')),
                    hint = format('Say from where it goes on for all tenants: select pgonce.set_partition(%L, %L, %L, %s, %s, ''the reason'').',
                        p_consumer, p_source, p_partition, v_other.position, v_other.minor);
            end if;
            v_epoch := greatest(v_epoch, v_other.epoch);
        end loop;
    end if;
    v_goes_on := coalesce(v_general.epoch > v_own.epoch
        and pgonce._is_after(v_general.position, v_general.minor, v_own.position, v_own.minor), false);
    return query
        update pgonce.inbox_cursor c
           set epoch = pgonce._next_fence(v_epoch, true), owner = p_owner, lease_until = pgonce.now() + p_lease,
               position = case when v_goes_on then v_general.position else c.position end,
               minor = case when v_goes_on then v_general.minor else c.minor end,
               moved_at = case when v_goes_on then pgonce.now() else c.moved_at end
         where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
        returning c.epoch, c.position, c.minor;
end
$$;
