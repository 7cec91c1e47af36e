-- pgonce._job_rules on Citus: as queue/_job_rules.sql, in PL/pgSQL: Citus copies no function to other servers whose body names a
--          table.
create or replace function pgonce._job_rules(p_queue text)
returns pgonce.job_queue
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules pgonce.job_queue;
begin
    -- Times of more than 5000 years are no dates any more, and the error would keep every job from ending.
    select q.tenant, q.queue, q.paused, q.max_attempts, q.backoff, q.max_backoff, least(q.keep, interval '5000 years'), q.max_running,
           q.max_per_key, q.rate, q.rate_per, q.defined_at
      into v_rules from pgonce.job_queue q
     where q.tenant = '' and q.queue in ('*', p_queue)
     order by q.queue = p_queue desc limit 1;
    return v_rules;
end
$$;
