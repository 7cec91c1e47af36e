-- pgonce._event_row(...): the row of an event, as pgonce.publish writes it.
-- answers  one row for pgonce.outbox. It checks nothing: p_size is for pgonce._event_size, or for somebody
--          who checked in another way
-- note     inlined, which is why it is labelled stable: an SDK inserts it with one prepared statement
--          and no PL/pgSQL, which would cost more than the insert.
--          The transaction id is taken below, the number above: pgonce.outbox_watermark rests on that order.
create or replace function pgonce._event_row(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_message_id uuid, p_headers jsonb, p_deliver_at timestamptz, p_tenant text, p_size integer)
returns setof pgonce.outbox
language sql stable
begin atomic
    select nextval('pgonce.outbox_seq'), e.xid, pgonce.now(), p_size,
           pgonce._lane_of(p_tenant, coalesce(p_subject, e.id::text)), e.id, p_tenant, p_topic, p_type,
           coalesce(p_subject, e.id::text), p_headers, p_payload, p_deliver_at
      from (
        select pg_current_xact_id() as xid,
               case when p_message_id is not null then p_message_id
                    when current_setting('pgonce.attempt', true) > '' then pgonce._derived_message_id(p_type)
                    else gen_random_uuid() end as id
         where pgonce._is_one_node() or pgonce._assert_one_node()
        offset 0  -- so that each is evaluated once, and before the number is drawn
      ) as e;
end;
