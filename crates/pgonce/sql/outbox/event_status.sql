-- pgonce.event_status(p_subscription, p_seq): reports what became of one event for one subscription.
-- answers  one row; none where neither the log nor what was parked or skipped has it. fate:
--            waiting   its lane has not reached it
--            unwanted  the subscription's filters leave it out
--            delayed, retry, dead, behind   parked, with the reason
--            skipped   given up, with the reason
--            passed    delivered, or published before the subscription began
-- locks    nothing
-- writes   nothing
-- raises   42704 no such subscription
-- example  select pgonce.create_subscription('billing');
--          select fate, attempts, reason from pgonce.event_status('billing', 1);
create or replace function pgonce.event_status(p_subscription text, p_seq bigint)
returns table (seq bigint, message_id uuid, fate text, attempts integer, due_at timestamptz, reason text,
    tenant text, topic text, type text, subject text, lane smallint, created_at timestamptz, deliver_at timestamptz,
    headers jsonb, payload jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
    v_parked   pgonce.parked;
    v_skipped  pgonce.outbox_skipped;
    v_event    pgonce.outbox;
    v_fate     text;
begin
    select k.* into v_parked from pgonce.parked k where k.subscription = p_subscription collate "C" and k.seq = p_seq;
    select s.* into v_skipped from pgonce.outbox_skipped s where s.subscription = p_subscription collate "C" and s.seq = p_seq;
    -- All lanes: their index leads to the number.
    select o.* into v_event from pgonce.outbox o
     where o.lane = any (array(select n::smallint from generate_series(0, 15) n)) and o.seq = p_seq;
    if coalesce(v_parked.seq, v_skipped.seq, v_event.seq) is null then
        return;
    end if;
    v_fate := case
        when v_parked.seq is not null then v_parked.state
        when v_skipped.seq is not null then 'skipped'
        when not pgonce._is_wanted(v_event.topic, v_event.type, v_event.tenant, v_subscription.topics, v_subscription.types,
            v_subscription.tenants) then 'unwanted'
        when exists (select from pgonce.outbox_cursor l cross join pgonce.outbox_state f
                      where l.subscription = p_subscription collate "C" and l.lane = v_event.lane
                        and pgonce._is_unread(v_event.seq, v_event.xid, l.cursor, f.base_seq)) then 'waiting'
        else 'passed' end;
    return query select p_seq, coalesce(v_parked.message_id, v_skipped.message_id, v_event.message_id), v_fate,
        v_parked.attempts, v_parked.due_at, coalesce(v_parked.reason, v_skipped.reason),
        coalesce(v_parked.tenant, v_skipped.tenant, v_event.tenant)::text,
        coalesce(v_parked.topic, v_skipped.topic, v_event.topic)::text,
        coalesce(v_parked.type, v_skipped.type, v_event.type)::text,
        coalesce(v_parked.subject, v_skipped.subject, v_event.subject)::text, coalesce(v_parked.lane, v_event.lane),
        coalesce(v_parked.created_at, v_event.created_at), v_event.deliver_at,
        coalesce(v_parked.headers, v_event.headers), coalesce(v_parked.payload, v_event.payload);
end
$$;
