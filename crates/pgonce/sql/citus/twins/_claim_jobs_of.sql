-- pgonce._claim_jobs_of(p_queues, p_owner, p_lease, p_limit, p_tenant): on Citus, pgonce.claim_jobs for those who know the tenant.
-- answers  as pgonce.claim_jobs
-- note     the call is sent to the tenant's server from here, where its arguments are values, however a client casts them
create or replace function pgonce._claim_jobs_of(p_queues text[], p_owner text, p_lease interval, p_limit integer, p_tenant text)
returns table (tenant text, id bigint, fence bigint, attempts integer, queue text, key text, payload jsonb, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
        select c.tenant, c.id, c.fence, c.attempts, c.queue, c.key, c.payload, c.created_at
          from pgonce._claim_tenant_jobs(p_queues, p_owner, p_lease, p_limit, p_tenant) c;
end
$$;
