-- pgonce.renew_jobs(p_jobs, p_lease): renews the leases of jobs, and records how far they are.
-- answers  the jobs that are still held; stop the others. In a queue with max_running one whose lease is over is held only while
--          its place is free
-- locks    their rows, and none that is locked
-- writes   for each element {"tenant", "id", "fence", "progress", "started"} of p_jobs when its lease is over, and its progress where
--          there is one. A lease of 0 gives jobs back: ready at once, with one attempt fewer, but where "started" is true
--          not fewer than one, so that the next one is seen to be a later one
-- raises   22023 a lease that is negative or null
-- example  select * from pgonce.renew_jobs('[]', '30 seconds');
create or replace function pgonce.renew_jobs(p_jobs jsonb, p_lease interval)
returns table (tenant text, id bigint, fence bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := pgonce.now();
    v_mine tid[];
begin
    if (p_lease >= interval '0') is not true then
        raise exception 'a lease is not negative' using errcode = '22023', hint = 'For example interval ''30 seconds''.';
    end if;
    -- Without waiting: one that is locked is being finished, by its own worker or not.
    v_mine := array(
        select l.ctid from pgonce.job_live l
          join jsonb_to_recordset(p_jobs) as c (tenant text, id bigint) on l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id
           for update of l skip locked);
    update pgonce.job_live l
       set due_at = case when p_lease > interval '0' then v_now + p_lease end,
           state = case when p_lease > interval '0' then l.state else 'ready' end,
           attempts = case when p_lease > interval '0' then l.attempts else greatest(l.attempts - 1, coalesce(c.started, false)::integer) end,
           progress = coalesce(c.progress, l.progress)
      from jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint, progress jsonb, started boolean)
     where l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence and l.state in ('running', 'limited')
       and l.ctid = any (v_mine)
       -- Workers of other tenants, who cannot give it back, pass it over in their count.
       and (l.state = 'running' or l.due_at > v_now or p_lease = interval '0'
            or (select count(*) from pgonce.job_running o where o.queue = l.queue and o.state = 'limited' and o.due_at > v_now)
               < coalesce((pgonce._job_rules(l.queue)).max_running, 2147483647));
    return query
        select l.tenant::text, l.id, l.fence from pgonce.job_live l
          join jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint)
            on l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence
         where l.state = 'running' or l.state = 'limited' and (l.due_at > v_now or l.ctid <> all (v_mine));
end
$$;
