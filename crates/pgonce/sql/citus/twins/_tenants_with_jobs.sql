-- pgonce._tenants_with_jobs(p_queues, p_limit): on Citus, tenants for whom a claim is worth it: jobs of these queues, or of all where
--          p_queues is null, are ready and not paused, or time has brought something: retries, leases that are over, schedules.
-- answers  at most p_limit, in another order each time: none comes always last
-- note     it reads every shard, and changes nothing: it is for those who look for work, who then claim tenant by tenant
create or replace function pgonce._tenants_with_jobs(p_queues text[], p_limit integer)
returns setof text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := pgonce.now();
    v_salt bigint := floor(random() * 1000000000)::bigint;
    v_idle text[];
begin
    select coalesce(array_agg(q.queue::text), '{}') into v_idle from pgonce.job_queue q where q.tenant = '' and q.paused;
    return query
        select w.tenant::text from (
            select l.tenant from pgonce.job_live l
             where l.state = 'ready' and (p_queues is null or l.queue = any (p_queues)) and l.queue <> all (v_idle)
               and (p_queues is not null or l.queue not like 'outbox/%')
            union all
            select l.tenant from pgonce.job_live l
             where l.state in ('scheduled', 'retrying', 'running', 'limited') and l.due_at <= v_now
            union all
            select s.tenant from pgonce.job_schedule s where s.next_at <= v_now
            union all
            select r.tenant from pgonce.job_recheck r) w
         group by w.tenant order by hashtextextended(w.tenant, v_salt) limit p_limit;
end
$$;
