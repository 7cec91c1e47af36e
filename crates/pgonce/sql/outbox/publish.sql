-- pgonce.publish(p_topic, p_type, p_subject, p_payload, p_message_id, p_headers, p_deliver_at, p_tenant):
--          publishes an event in the caller's transaction: the event exists if and only if that commits.
-- answers  the message id: p_message_id; else, inside an intent, one that is the same for every recorded
--          attempt of this life of its key; else a random one
-- locks    nothing
-- writes   one row of pgonce.outbox; it notifies nobody: a NOTIFY would halve the commits
-- raises   22023 a name or headers that do not fit; P4041 a payload of more than 1 MiB; P4042 headers of more than 64 KiB
-- note     events of one subject are delivered in order; an event without a subject is its own subject
-- example  select pgonce.publish('orders', 'order.created', 'order-7', '{"qty": 2}');
create or replace function pgonce.publish(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_message_id uuid default null, p_headers jsonb default '{}', p_deliver_at timestamptz default null,
    p_tenant text default '')
returns uuid
language plpgsql volatile
as $$
declare
    v_id pg_catalog.uuid;
begin
    insert into pgonce.outbox
    select e.* from pgonce._event_row(p_topic, p_type, p_subject, p_payload, p_message_id, p_headers,
        p_deliver_at, p_tenant, pgonce._event_size(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant)) e
    returning message_id into v_id;
    return v_id;
end
$$;
