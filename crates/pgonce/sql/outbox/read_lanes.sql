-- pgonce.read_lanes(p_consumer, p_held, p_limit, p_bytes): what is there now for these lanes and was
--          not there at their places. Deliver nothing before the transaction has committed.
-- answers  events in order, and last for each lane one row without seq: the place to go on from,
--          once the lane's events are delivered. act says what to do with an event:
--            send   deliver it
--            hold   its subject is parked: hand it to pgonce.settle_lane, do not deliver
--            wait   it is not due yet: the same
-- locks    nothing
-- writes   nothing but an empty message in the write-ahead log, where an event may not be durable
--          yet (a role with synchronous_commit off): this transaction's commit makes it so
-- raises   P4012 a lane is not held; 22023 bad limits
-- note     a window is what the snapshot of now sees and the place's snapshot did not see, in the
--          order of the numbers. So nobody who commits late is missed, nobody has to be waited
--          for, and the events of one subject cannot be turned round. A small window is found by
--          transaction, for all lanes at once; a long one is walked lane by lane in pages.
create or replace function pgonce.read_lanes(p_consumer text, p_held jsonb, p_limit integer default 1000,
    p_bytes integer default 4194304)
returns table (lane smallint, place text, seq bigint, act text, message_id uuid, tenant text, topic text,
    type text, subject text, headers jsonb, payload jsonb, created_at timestamptz, deliver_at timestamptz)
language plpgsql volatile set search_path = ''
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_consumer pgonce.outbox_consumer := pgonce.known_consumer(p_consumer);
    v_life     pgonce.outbox_life;
    v_upto     pg_snapshot;
    v_written  pg_lsn;
    v_now      timestamptz := pgonce.now();
    v_place    pgonce.outbox_place;
    v_group    record;
    v_late     xid8[];
    v_rows     bigint;
    v_bytes    bigint;
    v_given    bigint := 0;
    v_cut      boolean;
    v_last     bigint;
    v_next     pgonce.outbox_place;
    v_share    integer := greatest(p_limit / greatest(jsonb_array_length(p_held), 1), 16);
    v_floor    bigint;
    v_bytes_each integer := p_bytes / greatest(jsonb_array_length(p_held), 1);
    v_parked   boolean;
    v_settled  boolean;
    v_lane     smallint;
begin
    if (p_limit > 0 and p_bytes > 0) is not true then
        raise exception 'pgonce.read_lanes needs limits that are positive' using errcode = '22023',
            hint = 'For example p_limit => 1000, p_bytes => 4194304.';
    end if;
    for v_group in select h.* from pgonce.held_lanes(p_consumer, p_held) h where not h.held limit 1 loop
        perform pgonce.refuse_zombie(p_consumer, v_group.lane, v_group.epoch);
    end loop;
    v_settled := pgonce.outbox_is_settled();
    select l.* into strict v_life from pgonce.outbox_life l;
    v_upto := pg_current_snapshot();
    v_written := pg_current_wal_insert_lsn();  -- whoever the snapshot sees is before this
    v_parked := exists (select from pgonce.parked k where k.consumer = p_consumer and k.state <> 'delayed');
    v_floor := greatest(pgonce.outbox_floor(v_upto), v_life.base_seq);

    for v_group in
        select h.place, array_agg(h.lane order by h.lane) as lanes
          from jsonb_to_recordset(p_held) as h (lane smallint, place text) group by h.place
    loop
        v_place := v_group.place::pgonce.outbox_place;
        if not v_settled then
            return query select l, v_group.place, null::bigint, null, null::uuid, null, null, null, null,
                null::jsonb, null::jsonb, null::timestamptz, null::timestamptz from unnest(v_group.lanes) l;
            continue;
        end if;

        if v_place.upto is null then
            v_late := array(select x from pg_snapshot_xip(v_place.seen) x);
            select count(*), coalesce(sum(w.size), 0) into v_rows, v_bytes from (
                (select o.size from pgonce.outbox o
                  where o.seq > v_place.floor and o.xid >= pg_snapshot_xmax(v_place.seen)
                  order by o.xid limit p_limit + 1)
                union all
                (select o.size from pgonce.outbox o
                  where o.seq > v_place.floor and o.xid = any (v_late) limit p_limit + 1)) w;
            if v_rows <= p_limit and v_bytes <= p_bytes then
                if v_rows > 0 then
                    return query
                        select o.lane, null::text, o.seq,
                               case when o.deliver_at > v_now then 'wait'
                                    when v_parked and exists (select from pgonce.parked k
                                        where k.tenant = o.tenant and k.consumer = p_consumer
                                          and k.subject = o.subject and k.state <> 'delayed') then 'hold'
                                    else 'send' end,
                               o.message_id,
                               o.tenant::text, o.topic::text, o.type::text, o.subject::text, o.headers, o.payload,
                               o.created_at, o.deliver_at
                          from (select n.* from pgonce.outbox n
                                 where n.seq > v_place.floor and n.xid >= pg_snapshot_xmax(v_place.seen)
                                union all
                                select l.* from pgonce.outbox l
                                 where l.seq > v_place.floor and l.xid = any (v_late)) o
                         where o.lane = any (v_group.lanes)
                           and (o.seq <= v_life.base_seq or pg_visible_in_snapshot(o.xid, v_upto))
                           and pgonce.wanted(o.topic, o.type, o.tenant, v_consumer.topics, v_consumer.types, v_consumer.tenants)
                         order by o.seq;
                    get diagnostics v_rows = row_count;
                    v_given := v_given + v_rows;
                end if;
                return query select l, row(greatest(v_place.floor, v_floor), v_upto, null, null)::pgonce.outbox_place::text,
                    null::bigint, null, null::uuid, null, null, null, null, null::jsonb, null::jsonb,
                    null::timestamptz, null::timestamptz from unnest(v_group.lanes) l;
                continue;
            end if;
            v_place.upto := v_upto;
            v_place.after := v_place.floor;
        end if;

        foreach v_lane in array v_group.lanes loop
            -- How far the page goes, then the page: carrying what is wide through this would cost more.
            select max(p.seq), count(*), sum(p.size) into v_last, v_rows, v_bytes
              from (select o.seq, o.size from pgonce.lane_window(v_lane, v_place, 9223372036854775807, v_life.base_seq) o
                     where pgonce.wanted(o.topic, o.type, o.tenant, v_consumer.topics, v_consumer.types, v_consumer.tenants)
                     order by o.seq limit v_share) p;
            v_cut := v_bytes > v_bytes_each;
            if v_cut then
                select max(p.seq) into v_last
                  from (select o.seq, sum(o.size) over (order by o.seq) - o.size as before
                          from pgonce.lane_window(v_lane, v_place, v_last, v_life.base_seq) o
                         where pgonce.wanted(o.topic, o.type, o.tenant, v_consumer.topics, v_consumer.types, v_consumer.tenants)) p
                 where p.before < v_bytes_each;
            end if;
            if v_rows < v_share and v_cut is not true then
                v_next := row(greatest(v_place.floor, pgonce.outbox_floor(v_place.upto), v_life.base_seq),
                    v_place.upto, null, null)::pgonce.outbox_place;
            else
                v_next := row(v_place.floor, v_place.seen, v_place.upto, v_last)::pgonce.outbox_place;
            end if;
            return query
                select o.lane, null::text, o.seq,
                       case when o.deliver_at > v_now then 'wait'
                            when v_parked and exists (select from pgonce.parked k
                                where k.tenant = o.tenant and k.consumer = p_consumer
                                  and k.subject = o.subject and k.state <> 'delayed') then 'hold'
                            else 'send' end,
                       o.message_id, o.tenant::text, o.topic::text, o.type::text, o.subject::text, o.headers,
                       o.payload, o.created_at, o.deliver_at
                  from pgonce.lane_window(v_lane, v_place, v_last, v_life.base_seq) o
                 where pgonce.wanted(o.topic, o.type, o.tenant, v_consumer.topics, v_consumer.types, v_consumer.tenants)
                 order by o.seq;
            return query select v_lane, v_next::text, null::bigint, null, null::uuid, null, null, null, null,
                null::jsonb, null::jsonb, null::timestamptz, null::timestamptz;
            v_given := v_given + v_rows;
        end loop;
    end loop;

    if v_given > 0 and (pg_current_wal_flush_lsn() < v_written
                        or current_setting('synchronous_standby_names') <> '') then
        perform pgonce.insist_on_durable_commit();
        perform pg_logical_emit_message(true, 'pgonce', '');
    end if;
end
$$;
