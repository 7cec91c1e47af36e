-- pgonce._enqueue_tenant_job(...): on Citus, what pgonce.enqueue does, delegated to the server that has the tenant's rows.
-- answers  as pgonce.enqueue
-- locks    the unique key, until the transaction ends
-- writes   as pgonce.enqueue; never blocked: a claim decides whether it is a job's turn
-- raises   P4085 the unique key was used with another payload
-- note     a job's number begins with the epoch of its tenant, which moves with the tenant: those that are enqueued later have
--          higher ones, on whatever server. A sequence alone has another range on each
create or replace function pgonce._enqueue_tenant_job(p_queue text, p_payload jsonb, p_unique_key text, p_key text,
    p_priority integer, p_run_at timestamptz, p_group text, p_tenant text)
returns table (id bigint, made_now boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_now   timestamptz := pgonce.now();
    v_id    bigint := pgonce._lease_fence(0, v_tenant);
    v_made  bigint;
    v_state pgonce.job_state := 'ready';
    v_due   timestamptz;
    v_old   pgonce.job;
begin
    insert into pgonce.job (id, created_at, priority, tenant, queue, unique_key, key, group_name, payload)
    values (v_id, v_now, p_priority, v_tenant, p_queue, p_unique_key, p_key, p_group, p_payload)
    on conflict (tenant, queue, unique_key) where unique_key is not null do nothing
    returning id into v_made;
    if v_made is null then
        select j.* into v_old from pgonce.job j
         where j.tenant = v_tenant and j.queue = p_queue collate "C" and j.unique_key = p_unique_key collate "C";
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
        v_due := p_run_at;
    end if;
    insert into pgonce.job_live (id, due_at, state, priority, tenant, queue, key, group_name)
    values (v_id, v_due, v_state, p_priority, v_tenant, p_queue, p_key, p_group);
    return query select v_id, true;
end
$$;
