-- pgonce.renew_jobs(p_jobs, p_lease): renews the leases of jobs, and records how far they are.
-- answers  the jobs that are still held; stop the others. In a queue with max_running one whose lease is over is held only while
--          its place is free, and nobody else is about to take it
-- locks    their rows, and none that is locked; where the lease of one of a queue with max_running is over, the queue's advisory lock,
--          without waiting: without it none of these is renewed
-- writes   for each element {"tenant", "id", "fence", "progress", "started"} of p_jobs when its lease is over, and its progress where
--          there is one. A lease of 0 gives jobs back: ready at once, with one attempt fewer, but where "started" is true
--          not fewer than one, so that the next one is seen to be a later one. A job whose claim was open while its queue got
--          max_running counts from then on
-- raises   22023 a lease that is negative or null
-- example  select * from pgonce.renew_jobs('[]', '30 seconds');
create or replace function pgonce.renew_jobs(p_jobs jsonb, p_lease interval)
returns table (tenant text, id bigint, fence bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := pgonce.now();
    v_mine   tid[];
    v_queues text[];
    v_counts text[];
    v_again  tid[];
begin
    if (p_lease >= interval '0') is not true then
        raise exception 'a lease is not negative' using errcode = '22023', hint = 'For example interval ''30 seconds''.';
    end if;
    -- Without waiting: one that is locked is being finished, by its own worker or not.
    v_mine := array(
        select l.ctid from pgonce.job_live l
          join jsonb_to_recordset(p_jobs) as c (tenant text, id bigint) on l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id
           for update of l skip locked);
    v_counts := array(
        select q.queue from (select distinct l.queue from pgonce.job_live l
             where p_lease > interval '0' and l.ctid = any (v_mine) and l.state = 'running' offset 0) q
         where (pgonce._job_rules(q.queue)).max_running is not null);
    if cardinality(v_counts) > 0 then
        -- pgonce.define_queue did not see them: the transaction that claimed them was open.
        update pgonce.job_live l set state = 'limited' where l.ctid = any (v_mine) and l.queue = any (v_counts) and l.state = 'running';
        v_mine := array(
            select l.ctid from pgonce.job_live l
              join jsonb_to_recordset(p_jobs) as c (tenant text, id bigint) on l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id
               for update of l skip locked);
    end if;
    v_queues := array(
        select q.queue from (select distinct l.queue from pgonce.job_live l
             where p_lease > interval '0' and l.ctid = any (v_mine) and l.state = 'limited' and l.due_at <= v_now offset 0) q
         where pg_try_advisory_xact_lock(pgonce._lock_id('', 'queue', q.queue)));
    if cardinality(v_queues) > 0 then
        -- They take places anew. A new statement, so that it sees what was committed before the locks were ours. Workers of other
        -- tenants, who cannot give them back, pass them over in their count.
        v_again := array(
            select e.ctid
              from (select l.ctid, l.queue, row_number() over (partition by l.queue order by l.priority desc, l.id) as n
                      from pgonce.job_live l
                     where l.ctid = any (v_mine) and l.queue = any (v_queues) and l.state = 'limited' and l.due_at <= v_now
                       and exists (select from jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint)
                             where l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence)) e
             where e.n + (select count(*) from pgonce.job_running o where o.queue = e.queue and o.state = 'limited' and o.due_at > v_now)
                <= coalesce((pgonce._job_rules(e.queue)).max_running, 2147483647));
    end if;
    update pgonce.job_live l
       set due_at = case when p_lease > interval '0' then v_now + p_lease end,
           state = case when p_lease > interval '0' then l.state else 'ready' end,
           attempts = case when p_lease > interval '0' then l.attempts else greatest(l.attempts - 1, coalesce(c.started, false)::integer) end,
           progress = coalesce(c.progress, l.progress)
      from jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint, progress jsonb, started boolean)
     where l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence and l.state in ('running', 'limited')
       and l.ctid = any (v_mine)
       and (l.state = 'running' or l.due_at > v_now or p_lease = interval '0' or l.ctid = any (v_again));
    return query
        select l.tenant::text, l.id, l.fence from pgonce.job_live l
          join jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint)
            on l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence
         where l.state = 'running' or l.state = 'limited' and (l.due_at > v_now or l.ctid <> all (v_mine));
end
$$;
