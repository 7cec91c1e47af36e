-- pgonce._job_rules(p_queue): what a queue allows: its own row, else that of '*'.
create or replace function pgonce._job_rules(p_queue text)
returns pgonce.job_queue
-- PL/pgSQL keeps the plan; as a SQL function it would be planned with each call.
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules pgonce.job_queue;
begin
    -- Times of more than 5000 years are no dates any more, and the error would keep every job from ending.
    select q.tenant, q.queue, q.paused, q.max_attempts, q.backoff, q.max_backoff, least(q.keep, interval '5000 years'), q.max_running,
           q.max_per_key, q.rate, q.rate_per, q.defined_at
      into v_rules from pgonce.job_queue q
     where q.tenant = '' and (q.queue = p_queue collate "C" or q.queue = '*')
     order by q.queue = p_queue collate "C" desc limit 1;
    return v_rules;
end
$$;
