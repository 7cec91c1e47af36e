-- pgonce._read_lanes(p_subscription, p_held, p_limit, p_bytes): what is there now for these lanes and was
--          not there at their cursors. Deliver nothing before the transaction has committed.
-- answers  events in order, and last for each lane one row without seq: the cursor to go on from,
--          once the lane's events are delivered. act says what to do with an event:
--            send   deliver it
--            hold   its subject is parked: hand it to pgonce._settle_lane, do not deliver
--            wait   it is not due yet: the same
-- locks    nothing
-- writes   nothing but an empty message in the write-ahead log, where what it sees may not be durable
--          yet (a role with synchronous_commit off): this transaction's commit makes it so
-- raises   P4012 a lane is not held; 22023 bad limits
-- note     a window is what the snapshot of now sees and the cursor's snapshot did not see, in the
--          order of the numbers. So nobody who commits late is missed, nobody has to be waited
--          for, and the events of one subject cannot be turned round. A small window is found by
--          transaction, for all lanes at once; a long one is walked lane by lane in pages. A page ends also
--          after so many rows of the log, wanted or not: it may bring nothing but a cursor further on.
create or replace function pgonce._read_lanes(p_subscription text, p_held jsonb, p_limit integer default 1000,
    p_bytes integer default 4194304)
returns table (lane smallint, cursor text, seq bigint, act text, message_id uuid, tenant text, topic text,
    type text, subject text, headers jsonb, payload jsonb, created_at timestamptz, deliver_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_subscription pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
    v_life     pgonce.outbox_state;
    v_upto     pg_snapshot;
    v_written  pg_lsn;
    v_now      timestamptz := pgonce.now();
    v_settled  boolean;
    v_parked   boolean;
    v_floor    bigint;
    v_given    bigint := 0;
    v_group    record;
    v_cursor    pgonce.outbox_position;
    v_above    xid8[];
    v_below    xid8[];
    v_rows     bigint;
    v_bytes    bigint;
    -- Lanes whose window is walked in pages: each with its cursor, the end of its page and the next cursor.
    v_lanes    smallint[] := '{}';
    v_places   pgonce.outbox_position[] := '{}';
    v_lasts    bigint[];
    v_nexts    text[];
    v_share    integer := greatest(p_limit / greatest(jsonb_array_length(p_held), 1), 16);
    -- How many rows of a lane a page walks: 32,768 in all, or twice what it may bring. That takes as long as to bring it.
    v_scan     bigint := greatest(2 * v_share::bigint, 32768 / greatest(jsonb_array_length(p_held), 1));
    v_bytes_each integer := p_bytes / greatest(jsonb_array_length(p_held), 1);
begin
    if (p_limit > 0 and p_bytes > 0) is not true then
        raise exception 'pgonce._read_lanes needs limits that are positive' using errcode = '22023',
            hint = 'For example p_limit => 1000, p_bytes => 4194304.';
    end if;
    for v_group in select h.* from pgonce._leased_lanes(p_subscription, p_held) h where not h.held limit 1 loop
        perform pgonce._raise_lane_fenced(p_subscription, v_group.lane, v_group.epoch);
    end loop;
    v_settled := pgonce._outbox_is_settled();
    select l.* into strict v_life from pgonce.outbox_state l;
    v_upto := pgonce._others_snapshot();
    v_written := pg_current_wal_insert_lsn();  -- what the snapshot sees is before this
    v_parked := exists (select from pgonce.parked k where k.subscription = p_subscription collate "C" and k.state <> 'delayed');
    v_floor := greatest(pgonce._outbox_floor(v_upto), v_life.base_seq);

    for v_group in
        select h.cursor, array_agg(h.lane order by h.lane) as lanes
          from jsonb_to_recordset(p_held) as h (lane smallint, cursor text) group by h.cursor
    loop
        v_cursor := v_group.cursor::pgonce.outbox_position;
        if not v_settled then
            return query select l, v_group.cursor, null::bigint, null, null::uuid, null, null, null, null,
                null::jsonb, null::jsonb, null::timestamptz, null::timestamptz from unnest(v_group.lanes) l;
            continue;
        end if;

        if v_cursor.upto is null then
            select array_agg(e.above), array_agg(e.below) into v_above, v_below
              from pgonce._ended_between(v_cursor.seen, v_upto) e;
            select count(*), coalesce(sum(w.size), 0) into v_rows, v_bytes
              from (select o.size from unnest(v_above, v_below) e (above, below)
                     cross join lateral (select n.size from pgonce.outbox n
                           where n.seq > v_cursor.floor and n.xid > e.above and n.xid < e.below) o
                     limit p_limit + 1) w;
            if v_rows <= p_limit and v_bytes <= p_bytes then
                if v_rows > 0 then
                    return query
                        select o.lane, null::text, o.seq,
                               case when o.deliver_at > v_now then 'wait'
                                    when v_parked and exists (select from pgonce.parked k
                                        where k.tenant = o.tenant and k.subscription = p_subscription collate "C"
                                          and k.subject = o.subject and k.state <> 'delayed') then 'hold'
                                    else 'send' end,
                               o.message_id,
                               o.tenant::text, o.topic::text, o.type::text, o.subject::text, o.headers, o.payload,
                               o.created_at, o.deliver_at
                          from unnest(v_above, v_below) e (above, below)
                         cross join lateral (select n.* from pgonce.outbox n
                               where n.seq > v_cursor.floor and n.xid > e.above and n.xid < e.below
                               -- So that nobody walks the lanes for it instead.
                               offset 0) o
                         where o.lane = any (v_group.lanes)
                           and (o.seq <= v_life.base_seq or pg_visible_in_snapshot(o.xid, v_upto))
                           and pgonce._is_wanted(o.topic, o.type, o.tenant, v_subscription.topics, v_subscription.types, v_subscription.tenants)
                         order by o.seq;
                    get diagnostics v_rows = row_count;
                    v_given := v_given + v_rows;
                end if;
                return query select l, row(greatest(v_cursor.floor, v_floor), v_upto, null, null)::pgonce.outbox_position::text,
                    null::bigint, null, null::uuid, null, null, null, null, null::jsonb, null::jsonb,
                    null::timestamptz, null::timestamptz from unnest(v_group.lanes) l;
                continue;
            end if;
            v_cursor.upto := v_upto;
            v_cursor.after := v_cursor.floor;
        end if;
        v_lanes := v_lanes || v_group.lanes;
        v_places := v_places || array_fill(v_cursor, array[cardinality(v_group.lanes)]);
    end loop;

    if v_lanes <> '{}' then
        -- How far each page goes, then the pages: carrying what is wide through this would cost more.
        select array_agg(p.wanted order by p.n), array_agg(p.next::text order by p.n), sum(p.rows)
          into v_lasts, v_nexts, v_rows
          from (select l.n, w.rows, case when c.last <= w.last then c.last else w.last end as wanted,
                       case when w.rows < v_share and s.last is null and c.last is not distinct from w.last
                            then row(greatest(l.floor, pgonce._outbox_floor(l.upto), v_life.base_seq), l.upto, null, null)::pgonce.outbox_position
                            else row(l.floor, l.seen, l.upto, c.last)::pgonce.outbox_position end as next
                  from unnest(v_lanes, v_places) with ordinality as l (lane, floor, seen, upto, after, n)
                 cross join lateral (
                       select max(f.seq) as last, count(*) as rows, sum(f.size) as bytes
                         from (select o.seq, o.size
                                 from (select r.seq, r.xid, r.size, r.topic, r.type, r.tenant from pgonce.outbox r
                                        where r.lane = l.lane and r.seq > l.after order by r.seq limit v_scan) o
                                where pgonce._is_in_window(o.seq, o.xid, l.seen, l.upto, v_life.base_seq)
                                  and pgonce._is_wanted(o.topic, o.type, o.tenant, v_subscription.topics, v_subscription.types, v_subscription.tenants)
                                order by o.seq limit v_share) f) w
                 cross join lateral (
                       -- Where it ended because it had walked far enough; looked up once, for which the offset is.
                       select case when w.rows < v_share
                              then (select r.seq from pgonce.outbox r where r.lane = l.lane and r.seq > l.after
                                     order by r.seq offset v_scan - 1 limit 1) end as last
                       offset 0) s
                 cross join lateral (
                       select case when (w.bytes > v_bytes_each) is not true then coalesce(s.last, w.last)
                              else (select max(f.seq)
                                      from (select o.seq, sum(o.size) over (order by o.seq) - o.size as before
                                              from pgonce._lane_window(l.lane, l.after, w.last, l.seen, l.upto, v_life.base_seq) o
                                             where pgonce._is_wanted(o.topic, o.type, o.tenant, v_subscription.topics, v_subscription.types, v_subscription.tenants)) f
                                     where f.before < v_bytes_each) end as last
                       offset 0) c) p;
        return query
            select o.lane, null::text, o.seq,
                   case when o.deliver_at > v_now then 'wait'
                        when v_parked and exists (select from pgonce.parked k
                            where k.tenant = o.tenant and k.subscription = p_subscription collate "C"
                              and k.subject = o.subject and k.state <> 'delayed') then 'hold'
                        else 'send' end,
                   o.message_id, o.tenant::text, o.topic::text, o.type::text, o.subject::text, o.headers,
                   o.payload, o.created_at, o.deliver_at
              from unnest(v_lanes, v_lasts, v_places) as l (lane, last, floor, seen, upto, after)
             -- One lane after the other, each in order.
             cross join lateral (
                   select w.* from pgonce._lane_window(l.lane, l.after, l.last, l.seen, l.upto, v_life.base_seq) w
                    where pgonce._is_wanted(w.topic, w.type, w.tenant, v_subscription.topics, v_subscription.types, v_subscription.tenants)
                    order by w.seq) o;
        return query select l.lane, l.next, null::bigint, null, null::uuid, null, null, null, null,
            null::jsonb, null::jsonb, null::timestamptz, null::timestamptz from unnest(v_lanes, v_nexts) l (lane, next);
        v_given := v_given + v_rows;
    end if;

    -- Also what was only seen: a crash would give its transaction ids to others, who would be called old.
    if pg_current_wal_flush_lsn() < v_written
       or v_given > 0 and current_setting('synchronous_standby_names') <> '' then
        perform pgonce._force_durable_commit();
        perform pg_logical_emit_message(true, 'pgonce', '');
    end if;
end
$$;
