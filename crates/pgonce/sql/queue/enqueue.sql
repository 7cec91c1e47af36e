-- pgonce.enqueue(p_queue, p_payload, p_unique_key, p_key, p_priority, p_run_at, p_group, p_tenant): puts a job into a queue.
--          It exists when the transaction of the caller commits, and not before.
-- answers  the job's number, and whether it was made now: with p_unique_key, a second call gets the first job, for as
--          long as its record is kept
-- locks    the unique key, until the transaction ends; for a job behind another of its key, an advisory lock that
--          nobody waits for
-- writes   a row of pgonce.job and one of pgonce.job_live
-- raises   22023 a name or a number that does not fit; P4085 the unique key was used with another payload
-- note     jobs of one p_key run one after the other, in the order of their numbers, or as many at a time as the queue
--          allows. A higher p_priority comes first. A job with p_run_at holds its key only from then on
-- example  select * from pgonce.enqueue('mail', '{"to": "ada"}', p_unique_key => 'welcome-7');
create or replace function pgonce.enqueue(p_queue text, p_payload jsonb default null, p_unique_key text default null,
    p_key text default null, p_priority integer default 0, p_run_at timestamptz default null, p_group text default null,
    p_tenant text default '')
returns table (id bigint, made_now boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id    bigint;
    v_now   timestamptz := pgonce.now();
    v_state pgonce.job_state := 'ready';
    v_old   pgonce.job;
begin
    if (octet_length(p_queue) between 1 and 200) is not true or p_queue = '*' then
        raise exception 'a queue needs a name of 1 to 200 bytes, not %', coalesce(octet_length(p_queue)::text, 'null')
            using errcode = '22023', hint = 'For example ''mail''; ''*'' stands for all queues.';
    elsif (octet_length(p_unique_key) between 1 and 255) is false or (octet_length(p_key) between 1 and 255) is false
       or (octet_length(p_group) between 1 and 255) is false or (octet_length(p_tenant) <= 255) is not true
       or (p_priority between -32768 and 32767) is not true then
        raise exception 'the unique key, key and group of a job have 1 to 255 bytes, and its priority 16 bits' using errcode = '22023',
            hint = 'Leave out what the job does not need.';
    end if;
    if not pgonce._is_one_node() then
        perform pgonce._assert_one_node();
    end if;
    insert into pgonce.job (id, created_at, priority, tenant, queue, unique_key, key, group_name, payload)
    values (nextval('pgonce.job_seq'), v_now, p_priority, p_tenant, p_queue, p_unique_key, p_key, p_group, p_payload)
    on conflict (tenant, queue, unique_key) where unique_key is not null do nothing
    returning id into v_id;
    if v_id is null then
        select j.* into v_old from pgonce.job j
         where j.tenant = p_tenant collate "C" and j.queue = p_queue collate "C" and j.unique_key = p_unique_key collate "C";
        if not found then
            raise exception 'another transaction enqueued this job' using errcode = '40001', hint = 'Run the transaction again.';
        elsif v_old.payload is distinct from p_payload then
            raise exception 'the unique key names job % of queue "%", which has another payload', v_old.id, p_queue
                using errcode = 'P4085', hint = 'Take a unique key for each thing to do, or send the same payload.';
        end if;
        return query select v_old.id, false;
        return;
    end if;
    if p_run_at > v_now then
        v_state := 'scheduled';
    elsif p_key is not null and pgonce._key_is_busy(p_tenant, p_queue, p_key)
       and current_setting('transaction_isolation') = 'read committed'
       and pg_try_advisory_xact_lock_shared(pgonce._job_key_lock(p_tenant, p_queue, p_key))
       and pgonce._key_is_busy(p_tenant, p_queue, p_key) then
        v_state := 'blocked';
    end if;
    insert into pgonce.job_live (id, due_at, state, priority, tenant, queue, key, group_name)
    values (v_id, case v_state when 'scheduled' then p_run_at end, v_state, p_priority, p_tenant, p_queue, p_key, p_group);
    return query select v_id, true;
end
$$;
