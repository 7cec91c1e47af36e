-- pgonce.renew_jobs(p_jobs, p_lease): renews the leases of jobs, and records how far they are.
-- answers  the jobs that are still held; stop the others
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
begin
    if (p_lease >= interval '0') is not true then
        raise exception 'a lease is not negative' using errcode = '22023', hint = 'For example interval ''30 seconds''.';
    end if;
    update pgonce.job_live l
       set due_at = case when p_lease > interval '0' then pgonce.now() + p_lease end,
           state = case when p_lease > interval '0' then l.state else 'ready' end,
           attempts = case when p_lease > interval '0' then l.attempts else greatest(l.attempts - 1, coalesce(c.started, false)::integer) end,
           progress = coalesce(c.progress, l.progress)
      from jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint, progress jsonb, started boolean)
     where l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence and l.state in ('running', 'limited')
       -- Without waiting: one that is locked is being finished, by its own worker or not.
       and l.ctid = any (array(
           select x.ctid from pgonce.job_live x
             join jsonb_to_recordset(p_jobs) as d (tenant text, id bigint) on x.tenant = coalesce(d.tenant, '') collate "C" and x.id = d.id
              for update of x skip locked));
    return query
        select l.tenant::text, l.id, l.fence from pgonce.job_live l
          join jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint)
            on l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence
         where l.state in ('running', 'limited');
end
$$;
