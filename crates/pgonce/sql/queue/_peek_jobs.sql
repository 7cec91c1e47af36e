-- pgonce._peek_jobs(p_queues): whether it is worth a claim, for a worker that found nothing the last time.
-- answers  the number that was given to a job last, committed or not, and whether a job of these queues, or of all where
--          p_queues is null, is ready
-- note     a claim costs ten times as much
create or replace function pgonce._peek_jobs(p_queues text[])
returns table (last_id bigint, is_ready boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select s.last_value, exists (select from pgonce.job_live l
             where l.state = 'ready' and (p_queues is null or l.queue = any (p_queues collate "C")))
      from pgonce.job_seq s;
end;
