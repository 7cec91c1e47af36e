-- pgonce.claim_jobs on Citus: as queue/claim_jobs.sql, of one tenant at a time, on its server.
-- note     it reads every shard to find tenants, and gives the jobs of the first that has some: so one server is written. Limits
--          of a queue hold for each tenant, and priorities among the jobs of one
create or replace function pgonce.claim_jobs(p_queues text[], p_owner text, p_lease interval, p_limit integer)
returns table (tenant text, id bigint, fence bigint, attempts integer, queue text, key text, payload jsonb, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant text;
begin
    if coalesce(p_owner, '') = '' or (p_lease > interval '0' and p_limit between 1 and 10000) is not true then
        raise exception 'a worker needs a name, a positive lease and a limit of 1 to 10000 jobs' using errcode = '22023',
            hint = 'For example: pgonce.claim_jobs(''{mail}'', ''host-7'', interval ''30 seconds'', 10).';
    elsif current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'jobs are claimed in READ COMMITTED, not in %', current_setting('transaction_isolation') using errcode = '25000',
            hint = 'Call it in a transaction of its own: begin isolation level read committed.';
    end if;
    for v_tenant in select t from pgonce._tenants_with_jobs(p_queues, 100) t loop
        return query
            select c.tenant, c.id, c.fence, c.attempts, c.queue, c.key, c.payload, c.created_at
              from pgonce._claim_tenant_jobs(p_queues, p_owner, p_lease, p_limit, v_tenant) c;
        exit when found;
    end loop;
end
$$;
