-- pgonce.finish_jobs(p_jobs): records that jobs are done. Call it in the transaction of their effects.
-- answers  how many
-- locks    their rows
-- writes   for each element {"tenant", "id", "fence", "result"} of p_jobs a row of pgonce.job_end instead of that of
--          pgonce.job_live, with its result; nothing of a job in a queue that keeps none
-- raises   P4012 another worker has one of them, or it was cancelled: roll back, its effect is not yours any more
-- example  select from pgonce.enqueue('mail', '{"to": "ada"}');
--          select id, fence from pgonce.claim_jobs('{mail}', 'host-7', '30 seconds', 1) \gset
--          select pgonce.finish_jobs('[{"id": :id, "fence": :fence, "result": "sent"}]');
create or replace function pgonce.finish_jobs(p_jobs jsonb)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
-- Its plan is kept, and must not be that of the empty table that it was made for.
declare
    v_count integer;
    v_keys  pgonce.job_recheck[];
    v_key   pgonce.job_recheck;
begin
    perform pgonce._force_durable_commit();
    with done as (
        delete from pgonce.job_live l
         using jsonb_to_recordset(p_jobs) as c (tenant text, id bigint, fence bigint, result jsonb)
         where l.tenant = coalesce(c.tenant, '') collate "C" and l.id = c.id and l.fence = c.fence and l.state in ('running', 'limited')
        returning l.tenant, l.id, l.queue, l.key, l.attempts, l.owner, c.result
    ), kept as (
        select q.queue, (pgonce._job_rules(q.queue)).keep from (select distinct d.queue from done d) q
    ), ended as (
        insert into pgonce.job_end (id, ended_at, expires_at, status, attempts, tenant, queue, owner, result)
        select d.id, pgonce.now(), pgonce.now() + k.keep, 'succeeded', d.attempts, d.tenant, d.queue, d.owner, d.result
          from done d join kept k on k.queue = d.queue where k.keep > interval '0'
    ), forgotten as (
        delete from pgonce.job j using done d join kept k on k.queue = d.queue
         where k.keep = interval '0' and j.tenant = d.tenant and j.id = d.id
    )
    select count(*), array_agg(distinct row(0, d.tenant, d.queue, d.key)::pgonce.job_recheck) filter (where d.key is not null)
      into v_count, v_keys from done d;
    if v_count is distinct from jsonb_array_length(p_jobs) then
        raise exception '% of % jobs are not held with these fences', jsonb_array_length(p_jobs) - v_count, jsonb_array_length(p_jobs)
            using errcode = 'P4012', hint = 'Roll back: another worker has them, or has done them, or they were cancelled.';
    end if;
    foreach v_key in array coalesce(v_keys, '{}') loop
        perform pgonce._free_key(v_key.tenant, v_key.queue, v_key.key);
    end loop;
    return v_count;
end
$$;
