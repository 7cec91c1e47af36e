-- pgonce._raise_queue_of_events(p_queue): on Citus, events travel in queues whose names begin with "outbox/", and nothing else does.
-- raises   22023, always
create or replace function pgonce._raise_queue_of_events(p_queue text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'queue "%" is for the events of a subscription', p_queue using errcode = '22023',
        hint = 'Take another name. Events are published with pgonce.publish, and pgonce.alter_subscription says how often they are tried.';
end
$$;
