-- pgonce._claim_tenant_jobs(p_queues, p_owner, p_lease, p_limit, p_tenant): on Citus, what pgonce.claim_jobs does for one tenant,
--          delegated to the server that has its rows.
-- answers  as pgonce.claim_jobs; events, in the queues of subscriptions, only to those who name the queue
-- locks    as pgonce.claim_jobs
-- writes   as pgonce.claim_jobs: first whatever is due of this tenant
-- raises   22023 a bad owner, lease or limit; 25000 the transaction is not READ COMMITTED
create or replace function pgonce._claim_tenant_jobs(p_queues text[], p_owner text, p_lease interval, p_limit integer, p_tenant text)
returns table (tenant text, id bigint, fence bigint, attempts integer, queue text, key text, payload jsonb, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_queue text collate "C";
    v_names text[] := '{}';
    v_left  integer := p_limit;
    v_count integer;
begin
    if coalesce(p_owner, '') = '' or (p_lease > interval '0' and p_limit between 1 and 10000) is not true then
        raise exception 'a worker needs a name, a positive lease and a limit of 1 to 10000 jobs' using errcode = '22023',
            hint = 'For example: pgonce.claim_jobs(''{mail}'', ''host-7'', interval ''30 seconds'', 10).';
    elsif current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'jobs are claimed in READ COMMITTED, not in %', current_setting('transaction_isolation') using errcode = '25000',
            hint = 'Call it in a transaction of its own: begin isolation level read committed.';
    end if;
    perform pgonce._force_durable_commit();
    perform pgonce._wake_jobs(1000, p_tenant);
    for v_queue in
        select l.queue from pgonce.job_live l
         where l.tenant = p_tenant and l.state = 'ready' and (p_queues is null or l.queue = any (p_queues))
           and (p_queues is not null or l.queue not like 'outbox/%') group by l.queue
    loop
        v_names := v_names || v_queue::text;
    end loop;
    for v_queue in select n from unnest(v_names) n order by random() loop
        return query select * from pgonce._claim_queue(v_queue, p_owner, p_lease, v_left, p_tenant);
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        exit when v_left <= 0;
    end loop;
end
$$;
