-- pgonce.enqueue on Citus: as queue/enqueue.sql, on the server that has the tenant's rows, however the call stands.
create or replace function pgonce.enqueue(p_queue text, p_payload jsonb default null, p_unique_key text default null,
    p_key text default null, p_priority integer default 0, p_run_at timestamptz default null, p_group text default null,
    p_tenant text default '')
returns table (id bigint, made_now boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if (octet_length(p_queue) between 1 and 200) is not true or p_queue = '*' then
        raise exception 'a queue needs a name of 1 to 200 bytes, not %', coalesce(octet_length(p_queue)::text, 'null')
            using errcode = '22023', hint = 'For example ''mail''; ''*'' stands for all queues.';
    elsif p_queue ^@ 'outbox/' then
        perform pgonce._raise_queue_of_events(p_queue);
    elsif (octet_length(p_unique_key) between 1 and 255) is false or (octet_length(p_key) between 1 and 255) is false
       or (octet_length(p_group) between 1 and 255) is false or (octet_length(p_tenant) <= 255) is not true
       or (p_priority between -32768 and 32767) is not true then
        raise exception 'the unique key, key and group of a job have 1 to 255 bytes, and its priority 16 bits' using errcode = '22023',
            hint = 'Leave out what the job does not need.';
    end if;
    return query select e.id, e.made_now
        from pgonce._enqueue_tenant_job(p_queue, p_payload, p_unique_key, p_key, p_priority, p_run_at, p_group, p_tenant) e;
end
$$;
