-- pgonce.replay(p_subscription, p_from_seq, p_from_time): lets one subscription go back in the log, to a
--          number or a time; also one that was evicted. With neither: to the oldest that is kept.
-- answers  the number of the first event that comes again; where the subscription was evicted, of the first that it
--          gets, as far as they are kept; null: nothing comes again, because it has not passed any of these
-- locks    the rows of its lanes
-- writes   every lane that has passed an event from there on goes back; relays that hold lanes are fenced and claim
--          again; a row of pgonce.operator_act
-- raises   42704 no such subscription; 22023 both a number and a time
-- note     a lane only goes back: what it has not read stays unread, however old it is, and what is older than asked for
--          and was read does not come again, with one exception. A lane that is working through a long backlog has one
--          cursor. If that has not reached p_from_seq yet, the lane reads everything after the cursor, so events before that
--          number may come again too. From a time: from the first number that was published since then; what was published side by
--          side with that one may be older. What is parked for the subscription stays parked
-- example  select pgonce.create_subscription('billing');
--          select pgonce.replay('billing', p_from_seq => 1);
create or replace function pgonce.replay(p_subscription text, p_from_seq bigint default null,
    p_from_time timestamptz default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_evicted boolean;
    v_base    bigint;
    v_before  bigint;  -- up to this number nothing comes again; null: nothing at all does
    v_lanes   smallint[];
    v_cursors pgonce.outbox_position[];
    v_first   bigint;
begin
    if p_from_seq is not null and p_from_time is not null then
        raise exception 'a replay begins with a number or with a time, not both' using errcode = '22023',
            hint = 'Leave one of them out.';
    end if;
    if pg_current_xact_id_if_assigned() is null then
        perform pgonce._rebase_outbox();
    end if;
    v_evicted := (pgonce._require_subscription(p_subscription)).evicted_at is not null;
    perform from pgonce.outbox_cursor c where c.subscription = p_subscription collate "C" order by c.lane for update;
    select l.base_seq into strict v_base from pgonce.outbox_state l;
    if p_from_time is null then
        v_before := greatest(coalesce(p_from_seq, 1), 1) - 1;
    else
        select min(o.seq) - 1 into v_before from pgonce.outbox o where o.created_at >= p_from_time;
    end if;
    select array_agg(l.lane), array_agg(n.cursor), min(a.seq) into v_lanes, v_cursors, v_first
      from pgonce.outbox_cursor l
     cross join lateral (
           select o.seq from pgonce.outbox o
            where o.lane = l.lane and o.seq > v_before
              -- A lane that has seen no transaction whole has passed only what is up to here: more need not be looked at.
              and (pg_snapshot_xmax((l.cursor).seen) <> '1' or o.seq <= greatest((l.cursor).floor, (l.cursor).after))
              and not pgonce._is_unread(o.seq, o.xid, l.cursor, v_base)
            order by o.seq limit 1) p
     cross join lateral (
           -- In pages from there on, up to what the lane has seen: so who commits late below it is not passed by, and what
           -- was seen before it does not come again.
           select case when pg_snapshot_xmax(coalesce((l.cursor).upto, (l.cursor).seen)) = '1'
               then row(least((l.cursor).floor, v_before), '1:1:', null, null)::pgonce.outbox_position
               else row(least((l.cursor).floor, v_before), '1:1:', coalesce((l.cursor).upto, (l.cursor).seen),
                        least((l.cursor).after, v_before))::pgonce.outbox_position end as cursor) n
     cross join lateral (
           -- At the latest that one; before it what it has read behind its page.
           select o.seq from pgonce.outbox o
            where o.lane = l.lane and o.seq > coalesce((n.cursor).after, (n.cursor).floor) and o.seq <= p.seq
              and pgonce._is_unread(o.seq, o.xid, n.cursor, v_base) and not pgonce._is_unread(o.seq, o.xid, l.cursor, v_base)
            order by o.seq limit 1) a
     where l.subscription = p_subscription collate "C";
    -- Also of lanes that stay: what a relay has read and not recorded may be delivered already, and comes again.
    update pgonce.outbox_cursor c set epoch = pgonce._next_fence(c.epoch, true), owner = null, lease_until = null
     where c.subscription = p_subscription collate "C";
    update pgonce.outbox_cursor c
       set advanced_at = pgonce.now(), cursor = row(n.floor, n.seen, n.upto, n.after)::pgonce.outbox_position
      from unnest(v_lanes, v_cursors) as n (lane, floor, seen, upto, after)
     where c.subscription = p_subscription collate "C" and c.lane = n.lane;
    if v_evicted then
        update pgonce.outbox_subscription c set evicted_at = null, evicted_why = null where c.subscription = p_subscription collate "C";
        update pgonce.outbox_cursor c set advanced_at = pgonce.now() where c.subscription = p_subscription collate "C";
        select min(n.seq) into v_first
          from pgonce.outbox_cursor l
         cross join lateral (
               select o.seq from pgonce.outbox o
                where o.lane = l.lane and o.seq > (l.cursor).floor and pgonce._is_unread(o.seq, o.xid, l.cursor, v_base)
                order by o.seq limit 1) n
         where l.subscription = p_subscription collate "C";
    end if;
    perform pgonce._audit_act('replay', 'outbox ' || p_subscription, null,
        'from ' || coalesce(p_from_seq::text, p_from_time::text, 'the oldest'), jsonb_build_object('first', v_first));
    return v_first;
end
$$;
