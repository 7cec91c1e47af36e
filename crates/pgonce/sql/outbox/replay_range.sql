-- pgonce.replay_range(p_subscription, p_from_seq, p_to_seq, p_from_time, p_to_time, p_limit): gives one
--          subscription some events of the log once more, and no others: numbers p_from_seq to p_to_seq, or
--          what was published from p_from_time until before p_to_time.
-- answers  how many it will get again: what its filters let through, it has passed, and the log still has
-- locks    the rows of its lanes
-- writes   a parked copy of each, due now, in order for each subject; nothing waits for them; a row of
--          pgonce.operator_act
-- raises   42704 no such subscription; P4031 it was evicted; 22023 no range, or more than p_limit events
-- note     pgonce.replay instead moves the cursor back: everything from there on comes again
-- example  select pgonce.create_subscription('billing');
--          select pgonce.replay_range('billing', p_from_seq => 1, p_to_seq => 20);
create or replace function pgonce.replay_range(p_subscription text, p_from_seq bigint default null,
    p_to_seq bigint default null, p_from_time timestamptz default null, p_to_time timestamptz default null,
    p_limit integer default 10000)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
    v_now      timestamptz := pgonce.now();
    v_base     bigint;
    v_range    bigint;
    v_count    bigint;
begin
    if (p_from_seq is null) = (p_from_time is null) or (p_to_seq is not null and p_from_seq is null)
       or (p_to_time is not null and p_from_time is null) or (p_limit > 0) is not true then
        raise exception 'a range begins with a number or with a time, and ends with the like' using errcode = '22023',
            hint = 'For example: select pgonce.replay_range(''billing'', p_from_seq => 4711, p_to_seq => 4720).';
    elsif v_subscription.evicted_at is not null then
        raise exception 'subscription "%" was evicted: %', p_subscription, v_subscription.evicted_why using errcode = 'P4031',
            hint = 'Let it read on with pgonce.replay, or drop it.';
    end if;
    perform from pgonce.outbox_cursor c where c.subscription = p_subscription collate "C" order by c.lane for update;
    select l.base_seq into strict v_base from pgonce.outbox_state l;
    with range as materialized (
        select o.*
          from pgonce.outbox o
          join pgonce.outbox_cursor l on l.subscription = p_subscription collate "C" and l.lane = o.lane
         where (p_from_seq is null or o.seq >= p_from_seq) and (p_to_seq is null or o.seq <= p_to_seq)
           and (p_from_time is null or o.created_at >= p_from_time) and (p_to_time is null or o.created_at < p_to_time)
           and not pgonce._is_unread(o.seq, o.xid, l.cursor, v_base)
           and pgonce._is_wanted(o.topic, o.type, o.tenant, v_subscription.topics, v_subscription.types, v_subscription.tenants)
         order by o.seq limit p_limit + 1
    ), moved as (
        insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, due_at, parked_at, reason, created_at,
            size, message_id, topic, type, headers, payload)
        select o.tenant, p_subscription, o.subject, o.seq, o.lane, 'delayed', v_now, v_now, 'replayed', o.created_at,
               o.size, o.message_id, o.topic, o.type, o.headers, o.payload
          from range o
        on conflict on constraint one_row_per_parked_event do nothing
        returning 1
    )
    -- The limit is for the range: what is parked already must not hide that there is more.
    select (select count(*) from range), (select count(*) from moved) into v_range, v_count;
    if v_range > p_limit then
        raise exception 'there are more than % events in the range', p_limit using errcode = '22023',
            hint = 'Replay less at a time, raise p_limit, or let the subscription go back with pgonce.replay.';
    end if;
    perform pgonce._audit_act('replay', 'outbox ' || p_subscription, null,
        format('from %s to %s', coalesce(p_from_seq::text, p_from_time::text), coalesce(p_to_seq::text, p_to_time::text, 'the newest')),
        jsonb_build_object('moved', v_count));
    return v_count;
end
$$;
