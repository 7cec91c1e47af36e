-- pgonce.set_partition(p_consumer, p_source, p_partition, p_position, p_minor, p_reason, p_tenant): moves the
--          cursor of a consumer in a partition: to an earlier position, and it applies again; to a later one,
--          and it leaves out.
-- answers  the position that it had, null: none
-- locks    the cursor
-- writes   the position, null: from the start; a higher epoch, which fences its workers; a row of
--          pgonce.operator_act
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
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'to set a position needs a reason' using errcode = '22023',
            hint = 'Say why this consumer goes on from another place; it is kept with your name.';
    end if;
    select c.* into v_before from pgonce.inbox_cursor c
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C" for update;
    if not found then
        raise exception 'consumer "%" has no cursor in partition "%" of source "%"', p_consumer, p_partition, p_source
            using errcode = '42704', hint = 'See pgonce.inbox_cursor; a consumer makes it when it takes the partition.';
    end if;
    update pgonce.inbox_cursor c
       set position = p_position, minor = case when p_position is not null then coalesce(p_minor, 0) end,
           epoch = pgonce._next_fence(c.epoch, true), owner = null, lease_until = null, moved_at = pgonce.now()
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C";
    perform pgonce._audit_act('set_partition', 'inbox ' || p_consumer, p_source || ' ' || p_partition,
        format('from %s to %s: %s', coalesce(v_before.position::text, 'none'), coalesce(p_position::text, 'none'), p_reason),
        to_jsonb(v_before) - '{tenant,consumer,source,partition}'::text[], p_tenant);
    return v_before.position;
end
$$;
