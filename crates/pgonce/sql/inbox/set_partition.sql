-- pgonce.set_partition(p_consumer, p_source, p_partition, p_position, p_minor, p_reason, p_tenant): moves the
--          cursor of a consumer in a partition: to an earlier position, and it applies again; to a later one,
--          and it leaves out. For all tenants also where only sessions that are bound to one have taken it.
-- answers  the position that it had, null: none
-- locks    the cursor
-- writes   the position, null: from the start; an epoch higher than that of any tenant's cursor of the partition, which fences
--          its workers and makes the position count before theirs; a row of pgonce.operator_act
-- raises   22023 no reason given; 42704 there is no such cursor
-- example  select epoch from pgonce._lease_partition('billing', 'kafka:orders', '0', 'host-7', '10 seconds') \gset
--          select pgonce.set_partition('billing', 'kafka:orders', '0', 4711, 0, 'skip the broken import');
create or replace function pgonce.set_partition(p_consumer text, p_source text, p_partition text, p_position bigint,
    p_minor bigint, p_reason text, p_tenant text default '')
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgonce.inbox_cursor;
    v_epoch  bigint;
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'to set a position needs a reason' using errcode = '22023',
            hint = 'Say why this consumer goes on from another place; it is kept with your name.';
    end if;
    select max(c.epoch) into v_epoch from pgonce.inbox_cursor c
     where c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C";
    if p_tenant = '' collate "C" and v_epoch is not null then
        insert into pgonce.inbox_cursor as c (tenant, consumer, source, partition, epoch, moved_at)
        values ('', p_consumer, p_source, p_partition, 0, pgonce.now())
        on conflict on constraint one_cursor_per_partition do nothing;
    end if;
    select c.* into v_before from pgonce.inbox_cursor c
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C" for update;
    if not found then
        raise exception 'consumer "%" has no cursor in partition "%" of source "%"', p_consumer, p_partition, p_source
            using errcode = '42704', hint = 'See pgonce.inbox_cursor; a consumer makes it when it takes the partition.';
    end if;
    update pgonce.inbox_cursor c
       set position = p_position, minor = case when p_position is not null then coalesce(p_minor, 0) end,
           epoch = pgonce._next_fence(greatest(c.epoch, v_epoch), true), owner = null, lease_until = null, moved_at = pgonce.now()
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C";
    perform pgonce._audit_act('set_partition', 'inbox ' || p_consumer, p_source || ' ' || p_partition,
        format('from %s to %s: %s', coalesce(v_before.position::text, 'none'), coalesce(p_position::text, 'none'), p_reason),
        to_jsonb(v_before) - '{tenant,consumer,source,partition}'::text[], p_tenant);
    return v_before.position;
end
$$;
