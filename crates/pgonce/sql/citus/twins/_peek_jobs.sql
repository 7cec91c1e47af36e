-- pgonce._peek_jobs on Citus: as queue/_peek_jobs.sql, without the number: no server knows the last one of all.
-- note     it reads every shard: workers look at their own pace instead
create or replace function pgonce._peek_jobs(p_queues text[])
returns table (last_id bigint, is_ready boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform 1 from pgonce.job_live l
      where l.state = 'ready' and (p_queues is null or l.queue = any (p_queues))
        and (p_queues is not null or l.queue not like 'outbox/%') limit 1;
    return query select 0::bigint, found;
end
$$;
