-- pgonce.publish on Citus: as outbox/publish.sql, on the server that has the tenant's rows, however the call stands.
-- writes   a job for each subscription that wants the event; there is no log: what no subscription wants is not kept
create or replace function pgonce.publish(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_message_id uuid default null, p_headers jsonb default '{}', p_deliver_at timestamptz default null,
    p_tenant text default '')
returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_id uuid;
begin
    if p_tenant is null then
        -- Citus looks for the shard of a null argument, and the server that it asks crashes.
        perform pgonce._check_event(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant);
    end if;
    select n into v_id
      from pgonce._publish_tenant_event(p_topic, p_type, p_subject, p_payload, p_message_id, p_headers, p_deliver_at, p_tenant) n;
    return v_id;
end
$$;
