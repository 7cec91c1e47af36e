-- pgonce.event_status on Citus: there is no log to look into.
-- raises   P4105, always
create or replace function pgonce.event_status(p_subscription text, p_seq bigint)
returns table (seq bigint, message_id uuid, fate text, attempts integer, due_at timestamptz, reason text,
    tenant text, topic text, type text, subject text, lane smallint, created_at timestamptz, deliver_at timestamptz,
    headers jsonb, payload jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'on Citus there is no log of events' using errcode = 'P4105',
        hint = format('An event is a job: select * from pgonce.jobs where queue = %L and id = %s.', 'outbox/' || p_subscription, p_seq);
end
$$;
