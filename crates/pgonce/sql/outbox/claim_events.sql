-- pgonce.claim_events(p_subscription, p_owner, p_lease, p_limit): gives a consumer the next events of a subscription,
--          straight from the log. Commit, then apply the events of each row and end it with pgonce.settle_events in the
--          transaction of their effects.
-- answers  a row for each lane that has something: its events, in order, as an array of {"seq", "message_id", "tenant",
--          "topic", "type", "subject", "headers", "payload", "created_at", "attempts"}, and the batch for
--          pgonce.settle_events. The events of one subject are in one lane. Rows may have no events: settle them too.
--          About p_limit events of the log, and as many that failed before and are due again
-- locks    the rows of the lanes it takes; never waits for another consumer
-- writes   owner, epoch and lease of the lanes; the cursor of lanes that have nothing
-- raises   42704 no such subscription; P4031 it was evicted; 22023 a bad owner, lease or limit; 42501 the session's role is
--          bound to a tenant
-- note     no row does not say that there is nothing: a page may hold only events that the subscription does not want. Ask again
--          while pgonce.outbox_caught_up is false. The lanes are shared among the owners that call this; call it again well before the lease runs out. A batch that
--          was not settled is given again
-- example  select pgonce.create_subscription('mails', 'start');
--          select lane, events, batch from pgonce.claim_events('mails', 'host-7', '30 seconds', 100);
create or replace function pgonce.claim_events(p_subscription text, p_owner text, p_lease interval default interval '30 seconds',
    p_limit integer default 100)
returns table (lane smallint, events jsonb, batch jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_held    jsonb;
    v_surplus jsonb;
    v_lane    record;
    v_idle    jsonb := '[]';
begin
    if (p_limit > 0) is not true then
        raise exception 'pgonce.claim_events needs a limit that is positive' using errcode = '22023',
            hint = 'For example: pgonce.claim_events(''billing'', ''host-7'', ''30 seconds'', 100).';
    end if;
    -- It would see only its own tenant's events, and move the cursor past the others.
    perform pgonce._refuse_bound('a subscription belongs');
    -- First of all: both need a transaction that has written nothing.
    perform pgonce._rebase_outbox();
    perform pgonce._record_watermark();
    select jsonb_agg(l.held) filter (where not l.surplus), jsonb_agg(l.held) filter (where l.surplus)
      into v_held, v_surplus
      from (select jsonb_build_object('lane', c.lane, 'epoch', c.epoch, 'cursor', c.cursor) as held, c.surplus
              from pgonce._claim_lanes(p_subscription collate "C", p_owner collate "C", p_lease) c) l;
    if v_surplus is not null then
        perform pgonce._advance_lanes(p_subscription collate "C", v_surplus, true);
    end if;
    if v_held is null then
        return;
    end if;
    for v_lane in
        with came as materialized (
            select 1 as part, d.* from pgonce._due_parked(p_subscription collate "C", v_held, p_limit) with ordinality d
            union all
            select 2, r.* from pgonce._read_lanes(p_subscription collate "C", v_held, p_limit) with ordinality r
        )
        select h.lane, h.epoch, h.cursor as start, max(c.cursor) as next,
               coalesce(jsonb_agg(jsonb_build_object('seq', c.seq, 'message_id', c.message_id, 'tenant', c.tenant,
                   'topic', c.topic, 'type', c.type, 'subject', c.subject, 'headers', c.headers, 'payload', c.payload,
                   'created_at', c.created_at, 'attempts', coalesce(k.attempts, 0)) order by c.part, c.ordinality)
                   filter (where c.act = 'send'), '[]') as events,
               coalesce(jsonb_agg(jsonb_build_object('seq', c.seq, 'tenant', c.tenant, 'subject', c.subject,
                   'parked', k.attempts) order by c.part, c.ordinality) filter (where c.act = 'send'), '[]') as given,
               coalesce(jsonb_agg(jsonb_build_object('seq', c.seq, 'what', c.act)) filter (where c.act <> 'send'), '[]') as others
          from jsonb_to_recordset(v_held) as h (lane smallint, epoch bigint, cursor text)
          join came c on c.lane = h.lane
          left join pgonce.parked k on c.part = 1 and k.subscription = p_subscription collate "C" and k.seq = c.seq
         group by h.lane, h.epoch, h.cursor order by h.lane
    loop
        if v_lane.given <> '[]' or v_lane.others <> '[]' then
            lane := v_lane.lane;
            events := v_lane.events;
            batch := jsonb_build_object('lane', lane, 'epoch', v_lane.epoch, 'from', v_lane.start, 'to', v_lane.next,
                'events', v_lane.given, 'others', v_lane.others);
            return next;
        elsif v_lane.start <> v_lane.next then
            v_idle := v_idle || jsonb_build_object('lane', v_lane.lane, 'epoch', v_lane.epoch, 'cursor', v_lane.next);
        end if;
    end loop;
    -- They are read so far: the log behind them may go.
    if v_idle <> '[]' then
        perform pgonce._advance_lanes(p_subscription collate "C", v_idle);
    end if;
end
$$;
