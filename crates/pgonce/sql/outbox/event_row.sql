-- pgonce.event_row(…): the row of an event, as pgonce.publish writes it.
-- answers  one row for pgonce.outbox
-- raises   22023 a name or a payload that does not fit
-- note     inlined, which is why it is labelled stable: an SDK inserts it with one prepared statement
--          and no PL/pgSQL, which would cost more than the insert.
--          The transaction id is taken below, the number above: pgonce.outbox_mark rests on that order.
create or replace function pgonce.event_row(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_message_id uuid, p_headers jsonb, p_deliver_at timestamptz, p_tenant text)
returns setof pgonce.outbox
language sql stable
begin atomic
    select nextval('pgonce.outbox_seq'), e.xid, pgonce.now(), e.size,
           pgonce.lane_of(p_tenant, coalesce(p_subject, e.id::text)), e.id, p_tenant, p_topic, p_type,
           coalesce(p_subject, e.id::text), p_headers, p_payload, p_deliver_at
      from (
        select pg_current_xact_id() as xid,
               case when p_message_id is not null then p_message_id
                    when current_setting('pgonce.attempt', true) > '' then pgonce.derived_message_id(p_type)
                    else gen_random_uuid() end as id,
               case when octet_length(p_topic) between 1 and 255 and octet_length(p_type) between 1 and 255
                     and (p_subject is null or octet_length(p_subject) between 1 and 255)
                     and octet_length(p_tenant) <= 255 and jsonb_typeof(p_headers) = 'object'
                     and pg_column_size(p_headers) <= 65536
                     and (p_payload is null or pg_column_size(p_payload) <= 1048576)
                    then coalesce(pg_column_size(p_payload), 0) + pg_column_size(p_headers)
                    else pgonce.refuse_event(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant) end as size
        offset 0  -- so that each is evaluated once, and before the number is drawn
      ) as e;
end;
