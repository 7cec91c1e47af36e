-- pgonce.define_queue(p_queue, ...): says what a queue allows; what is left out stays, or is as for '*'. It also pauses and
--          resumes: p_paused.
-- answers  nothing
-- locks    the queue's rules: callers take turns; with limits, its jobs
-- writes   one row of pgonce.job_queue; where it changes, one of pgonce.operator_act. p_max_running: jobs that run at a time; p_max_per_key: jobs of one key; p_rate jobs
--          are started per p_rate_per. 0 takes p_max_running or p_rate away. p_keep: how long ended jobs stay readable, and
--          their unique keys taken; 0: not at all
-- raises   22023 a value that does not fit
-- example  select pgonce.define_queue('mail', p_max_running => 5, p_rate => 100);
--          select pgonce.define_queue('mail', p_paused => false);
create or replace function pgonce.define_queue(p_queue text, p_paused boolean default null, p_max_attempts integer default null,
    p_backoff interval default null, p_max_backoff interval default null, p_keep interval default null,
    p_max_running integer default null, p_max_per_key integer default null, p_rate integer default null,
    p_rate_per interval default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_was    pgonce.job_queue;
    v_row    pgonce.job_queue;
    v_before jsonb;
begin
    -- What is left out stays as the last one has made it, who may not have committed yet.
    perform pg_advisory_xact_lock(pgonce._lock_id('', 'queue rules', p_queue));
    v_was := pgonce._job_rules(p_queue);
    v_before := (select to_jsonb(q) from pgonce.job_queue q where q.tenant = '' and q.queue = p_queue collate "C");
    v_row := v_was;
    v_row.tenant := '';
    v_row.queue := p_queue;
    v_row.defined_at := pgonce.now();
    v_row.paused := coalesce(p_paused, v_row.paused);
    v_row.max_attempts := coalesce(p_max_attempts, v_row.max_attempts);
    v_row.backoff := coalesce(p_backoff, v_row.backoff);
    v_row.max_backoff := greatest(coalesce(p_max_backoff, v_row.max_backoff), case when p_max_backoff is null then p_backoff end);
    v_row.keep := coalesce(p_keep, v_row.keep);
    v_row.max_running := nullif(coalesce(p_max_running, v_row.max_running), 0);
    v_row.max_per_key := coalesce(p_max_per_key, v_row.max_per_key);
    v_row.rate := nullif(coalesce(p_rate, v_row.rate), 0);
    v_row.rate_per := coalesce(p_rate_per, v_row.rate_per);
    if (octet_length(p_queue) between 1 and 200) is not true or least(v_row.max_attempts, v_row.max_per_key, v_row.max_running, v_row.rate) < 1
       or v_row.backoff <= interval '0' or v_row.max_backoff < v_row.backoff or v_row.keep < interval '0' or v_row.rate_per <= interval '0' then
        raise exception 'queue "%" cannot be defined like this', coalesce(p_queue, 'null') using errcode = '22023',
            hint = 'A name of 1 to 200 bytes; attempts, limits and pauses are positive; max_backoff is not below backoff.';
    end if;
    insert into pgonce.job_queue select (v_row).*
    on conflict on constraint one_row_per_queue do update
       set (paused, max_attempts, backoff, max_backoff, keep, max_running, max_per_key, rate, rate_per, defined_at)
         = (excluded.paused, excluded.max_attempts, excluded.backoff, excluded.max_backoff, excluded.keep, excluded.max_running,
            excluded.max_per_key, excluded.rate, excluded.rate_per, excluded.defined_at);
    perform pgonce._audit_rules('queue ' || p_queue, v_before, to_jsonb(v_row),
        case when v_row.paused and not v_was.paused then 'pause' when v_was.paused and not v_row.paused then 'resume' end);
    -- The same rate again, as a service defines it at every start, starts no job more.
    delete from pgonce.job_bucket b where b.queue = p_queue collate "C"
       and (v_row.rate, v_row.rate_per) is distinct from (v_was.rate, v_was.rate_per);
    insert into pgonce.job_recheck (id, tenant, queue, key)
    select nextval('pgonce.job_seq'), b.tenant, b.queue, b.key
      from (select distinct l.tenant, l.queue, l.key from pgonce.job_live l
             where p_max_per_key is not null and l.state = 'blocked'
               and (l.queue = p_queue collate "C" or p_queue = '*' and (pgonce._job_rules(l.queue)).queue = '*')) b;
    -- Those that run count from now on; one whose claim is open, when its lease is renewed.
    update pgonce.job_live l set state = 'limited'
     where v_row.max_running is not null and l.state = 'running'
       and (l.queue = p_queue collate "C" or p_queue = '*' and (pgonce._job_rules(l.queue)).queue = '*');
end
$$;
