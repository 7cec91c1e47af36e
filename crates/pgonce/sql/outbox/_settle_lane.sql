-- pgonce._settle_lane(p_subscription, p_lane, p_epoch, p_cursor, p_outcomes): what came of a lane's events,
--          and how far the lane is now, in one step.
-- answers  how many events are parked or skipped by it
-- locks    the row of the lane
-- writes   each element {"seq", "what", "reason", "after_ms"} of p_outcomes:
--            sent   delivered: a parked event goes, the one behind it comes due
--            defer  nobody knows yet whose fault it is: parked as by retry, but no attempt is counted
--            retry  failed with a transient error: parked, due again after a growing pause with jitter, at least
--                   after_ms; given up after the subscription's max_attempts
--            dead   failed permanently: parked until pgonce.redrive or pgonce.skip
--            hold   behind one of its subject; wait: not due yet. Both parked.
--          and the cursor, unless p_cursor is null. An event that an operator has skipped meanwhile is not parked again; one that
--          was delivered all the same is no longer recorded as skipped
-- raises   P4012 the epoch does not hold the lane; P4060 the subscription's dead letters are full
create or replace function pgonce._settle_lane(p_subscription text, p_lane integer, p_epoch bigint, p_cursor text,
    p_outcomes jsonb)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_subscription pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
    v_outcome  record;
    v_parked   pgonce.parked;
    v_now      timestamptz;
    v_full     boolean;
    v_counted  boolean;
    v_room     bigint;
    v_tenants  text[];
    v_subjects text[];
    v_count    bigint := 0;
    v_cursor   pgonce.outbox_position;
    v_base     bigint;
    v_sent     bigint[];
begin
    perform pgonce._record_watermark();
    perform pgonce._force_durable_commit();
    select (c.cursor).* into v_cursor from pgonce.outbox_cursor c
     where c.subscription = p_subscription collate "C" and c.lane = p_lane for update;
    if not exists (select from pgonce._leased_lanes(p_subscription,
            jsonb_build_array(jsonb_build_object('lane', p_lane, 'epoch', p_epoch, 'cursor', p_cursor))) h where h.held) then
        perform pgonce._raise_lane_fenced(p_subscription, p_lane, p_epoch);
    end if;
    v_now := pgonce.now();
    -- What was parked and is delivered goes in one step; what was behind it comes due in the end.
    with gone as (
        delete from pgonce.parked k using jsonb_to_recordset(p_outcomes) as o (seq bigint, what text)
         where o.what = 'sent' and k.subscription = p_subscription collate "C" and k.seq = o.seq and k.lane = p_lane
        returning k.tenant, k.subject, k.seq
    )
    select array_agg(g.tenant), array_agg(g.subject), (select array_agg(d.seq) from gone d) into v_tenants, v_subjects, v_sent
      from (select distinct d.tenant, d.subject from gone d) g;
    if p_cursor is null then
        -- An operator skipped it while it was being delivered: it was.
        delete from pgonce.outbox_skipped s using pgonce.outbox o, jsonb_to_recordset(p_outcomes) as r (seq bigint, what text)
         where r.what = 'sent' and (r.seq = any (v_sent)) is not true and o.lane = p_lane and o.seq = r.seq
           and s.tenant = o.tenant and s.subscription = p_subscription collate "C" and s.seq = o.seq;
    end if;
    select l.base_seq into strict v_base from pgonce.outbox_state l;
    for v_outcome in
        select o.* from jsonb_to_recordset(p_outcomes) as o (seq bigint, what text, reason text, after_ms bigint)
         where o.what is distinct from 'sent' order by o.seq
    loop
        select k.* into v_parked from pgonce.parked k
         where k.subscription = p_subscription collate "C" and k.seq = v_outcome.seq and k.lane = p_lane;
        v_counted := coalesce(v_parked.state in ('dead', 'behind'), false);
        if v_parked.seq is null then
            -- From the log: it becomes a copy here.
            select o.tenant, p_subscription, o.subject, o.seq, o.lane, null, 0, null, v_now, null, o.created_at,
                   o.size, o.message_id, o.topic, o.type, o.headers, o.payload
              into v_parked
              from pgonce.outbox o where o.lane = p_lane and o.seq = v_outcome.seq
               and pgonce._is_unread(o.seq, o.xid, v_cursor, v_base)
             -- Where a number was given out twice, the later event has a copy: see pgonce._advance_outbox_seq.
             order by o.created_at limit 1;
            if v_parked.seq is null then
                -- Its partition is gone: the subscription was evicted. Or it was parked, and an operator has skipped it while it
                -- was being delivered.
                continue;
            end if;
        elsif v_outcome.what in ('hold', 'wait') then
            continue;  -- read once more after a crash: it is parked already
        end if;
        v_count := v_count + 1;
        v_parked.attempts := v_parked.attempts + (v_outcome.what in ('retry', 'dead'))::integer;
        v_parked.reason := left(v_outcome.reason, 4000);
        if v_outcome.what = 'defer' or v_outcome.what = 'retry' and v_parked.attempts < v_subscription.max_attempts then
            v_parked.state := 'retry';
            v_parked.due_at := v_now + greatest(
                pgonce._backoff(v_subscription.backoff, v_subscription.max_backoff, v_parked.attempts),
                -- A century at most: no timestamp is far beyond that.
                least(greatest(v_outcome.after_ms, 0), 3155760000000) * interval '1 millisecond');
        elsif v_outcome.what in ('retry', 'dead') then
            v_parked.state := 'dead';
            v_parked.due_at := null;
        elsif v_outcome.what = 'wait' then
            v_parked.state := 'delayed';
            select o.deliver_at into v_parked.due_at from pgonce.outbox o
             where o.lane = p_lane and o.seq = v_outcome.seq and o.message_id = v_parked.message_id;
        elsif v_outcome.what = 'hold' then
            v_parked.state := 'behind';
            -- What it was held for may have been settled since it was read, or have a higher number.
            v_parked.due_at := case when not exists (
                select from pgonce.parked f
                 where f.tenant = v_parked.tenant and f.subscription = p_subscription collate "C" and f.subject = v_parked.subject
                   and f.seq < v_parked.seq and f.state <> 'delayed') then v_now end;
        else
            raise exception 'an outcome is sent, defer, retry, dead, hold or wait, not %', coalesce(quote_literal(v_outcome.what), 'null')
                using errcode = '22023', hint = 'See the header of pgonce._settle_lane.';
        end if;

        if v_parked.state in ('dead', 'behind') then
            -- Counted once for all of them: counting for each would make a long queue slow.
            v_room := coalesce(v_room, v_subscription.dead_limit - (select count(*) from (select from pgonce.parked k
                where k.subscription = p_subscription collate "C" and k.state in ('dead', 'behind') limit v_subscription.dead_limit) f));
            v_full := v_room <= 0 and not v_counted;
            -- Nothing is discarded for being behind an event that only waits for a sink that is down.
            if v_full and (v_subscription.when_full = 'stop' or v_outcome.what = 'hold' and exists (
                select from pgonce.parked f where f.tenant = v_parked.tenant and f.subscription = p_subscription collate "C"
                   and f.subject = v_parked.subject and f.state = 'retry' and f.attempts = 0)) then
                raise exception 'the dead letters of subscription "%" are full: % events', p_subscription, v_subscription.dead_limit
                    using errcode = 'P4060', detail = format('Lane %s waits at event %s.', p_lane, v_parked.seq),
                    hint = 'Look at pgonce.dead_letters, then pgonce.redrive or pgonce.skip; or raise dead_limit.';
            elsif v_full then
                perform pgonce._record_skip(v_parked, 'the dead letters were full: ' || coalesce(v_parked.reason, v_parked.state));
                perform pgonce._unpark(v_parked);
                continue;
            elsif not v_counted then
                v_room := v_room - 1;
            end if;
        end if;
        insert into pgonce.parked select (v_parked).*
        on conflict on constraint one_row_per_parked_event
        do update set state = excluded.state, attempts = excluded.attempts, due_at = excluded.due_at,
            reason = excluded.reason;
    end loop;
    perform pgonce._wake_subject(p_subscription, g.tenant, g.subject) from unnest(v_tenants, v_subjects) g (tenant, subject);
    if p_cursor is not null then
        update pgonce.outbox_cursor c set cursor = p_cursor::pgonce.outbox_position, advanced_at = v_now,
               published = coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0)
         where c.subscription = p_subscription collate "C" and c.lane = p_lane;
    end if;
    return v_count;
end
$$;
