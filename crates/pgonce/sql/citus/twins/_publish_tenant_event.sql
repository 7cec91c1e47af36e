-- pgonce._publish_tenant_event(...): on Citus, what pgonce.publish does, delegated to the server that has the tenant's rows.
-- answers  as pgonce.publish
-- locks    nothing
-- writes   for each subscription that wants the event a job in its queue, "outbox/" and its name, with the subject as its key
-- raises   as pgonce._check_event
-- note     subscriptions are those that this statement sees. The payload of the job is the event, as pgonce.claim_events gives it
create or replace function pgonce._publish_tenant_event(p_topic text, p_type text, p_subject text, p_payload jsonb, p_message_id uuid,
    p_headers jsonb, p_deliver_at timestamptz, p_tenant text)
returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_topic  text collate "C" := p_topic;
    v_type   text collate "C" := p_type;
    v_id     uuid := p_message_id;
    v_event  jsonb;
    v_to     record;
    v_queues text[] := '{}';
    v_queue  text;
begin
    perform pgonce._check_event(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant);
    if v_id is null then
        v_id := case when current_setting('pgonce.attempt', true) > '' then pgonce._derived_message_id(p_type)
                else gen_random_uuid() end;
    end if;
    for v_to in select s.subscription, s.topics, s.types, s.tenants from pgonce.outbox_subscription s where s.evicted_at is null loop
        if pgonce._is_wanted(v_topic, v_type, v_tenant collate "C", v_to.topics, v_to.types, v_to.tenants) then
            v_queues := v_queues || ('outbox/' || v_to.subscription);
        end if;
    end loop;
    if v_queues <> '{}' then
        v_event := jsonb_build_object('message_id', v_id, 'topic', p_topic, 'type', p_type, 'subject', coalesce(p_subject, v_id::text),
            'headers', p_headers, 'created_at', to_char(pgonce.now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
        if p_payload is not null then
            v_event := v_event || jsonb_build_object('payload', p_payload);
        end if;
    end if;
    foreach v_queue in array v_queues loop
        perform from pgonce._enqueue_tenant_job(v_queue, v_event, null, p_subject, 0, p_deliver_at, null, v_tenant);
    end loop;
    return v_id;
end
$$;
