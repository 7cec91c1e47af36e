-- pgonce.publish(p_topic, p_type, p_subject, p_payload, …): says that something happened, in the
--          caller's transaction: the event exists if and only if that commits.
-- answers  the message id: p_message_id; else, inside an intent, one that is the same on every
--          attempt; else a random one
-- writes   one row of pgonce.outbox; wakes nobody: a NOTIFY would halve the commits
-- raises   22023 a name or a payload that does not fit
-- note     events of one subject are delivered in order; without a subject an event is its own
create or replace function pgonce.publish(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_message_id uuid default null, p_headers jsonb default '{}', p_deliver_at timestamptz default null,
    p_tenant text default '')
returns uuid
language plpgsql volatile
as $$
declare
    -- Before the number is drawn: pgonce.outbox_mark rests on this order.
    v_xid     xid8 := pg_current_xact_id();
    v_id      uuid := coalesce(p_message_id, pgonce.derived_message_id(p_type), gen_random_uuid());
    v_subject text := coalesce(p_subject, v_id::text);
begin
    if pgonce.event_fits(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant) is not true then
        perform pgonce.refuse_event(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant);
    end if;
    insert into pgonce.outbox (seq, xid, created_at, size, lane, message_id, tenant, topic, type, subject,
        headers, payload, deliver_at)
    values (nextval('pgonce.outbox_seq'), v_xid, pgonce.now(), coalesce(pg_column_size(p_payload), 0)
        + pg_column_size(p_headers), pgonce.lane_of(p_tenant, v_subject), v_id, p_tenant, p_topic, p_type,
        v_subject, p_headers, p_payload, p_deliver_at);
    return v_id;
end
$$;
