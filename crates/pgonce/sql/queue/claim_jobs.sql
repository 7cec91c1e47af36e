-- pgonce.claim_jobs(p_queues, p_owner, p_lease, p_limit): gives a worker jobs whose turn it is, of these queues, or of all
--          where p_queues is null. Commit at once, do the work, and end each with pgonce.finish_jobs in the transaction of
--          its effect, or with pgonce.fail_job.
-- answers  at most p_limit jobs; also those whose worker's lease is over
-- locks    the rows it gives, and none that another worker holds
-- writes   one attempt more and a new fence for each. Before that, whatever is due: schedules, retries, leases
-- raises   22023 a bad owner, lease or limit; 25000 the transaction is not READ COMMITTED: it would not see which keys run
-- note     only queues that have jobs cost anything
-- example  select * from pgonce.claim_jobs('{mail}', 'host-7', '30 seconds', 10);
create or replace function pgonce.claim_jobs(p_queues text[], p_owner text, p_lease interval, p_limit integer)
returns table (tenant text, id bigint, fence bigint, attempts integer, queue text, key text, payload jsonb, created_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_queue text collate "C";
    v_left  integer := p_limit;
    v_count integer;
begin
    if coalesce(p_owner, '') = '' or (p_lease > interval '0' and p_limit between 1 and 10000) is not true then
        raise exception 'a worker needs a name, a positive lease and a limit of 1 to 10000 jobs' using errcode = '22023',
            hint = 'For example: pgonce.claim_jobs(''{mail}'', ''host-7'', interval ''30 seconds'', 10).';
    elsif current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'jobs are claimed in READ COMMITTED, not in %', current_setting('transaction_isolation') using errcode = '25000',
            hint = 'Call it in a transaction of its own: begin isolation level read committed.';
    end if;
    perform pgonce._force_durable_commit();
    perform pgonce._wake_jobs(1000);
    for v_queue in
        with recursive busy as (
            (select l.queue from pgonce.job_live l where l.state = 'ready' order by l.queue limit 1)
            union all
            select (select l.queue from pgonce.job_live l where l.state = 'ready' and l.queue > b.queue order by l.queue limit 1)
              from busy b where b.queue is not null
        )
        select b.queue from busy b
         where b.queue is not null and (p_queues is null or b.queue = any (p_queues collate "C"))
         order by random()
    loop
        return query select * from pgonce._claim_queue(v_queue, p_owner, p_lease, v_left);
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        exit when v_left <= 0;
    end loop;
end
$$;
