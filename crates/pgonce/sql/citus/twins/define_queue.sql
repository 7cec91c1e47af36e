-- pgonce.define_queue on Citus: as queue/define_queue.sql; the rules are written on every server.
-- note     p_max_running and p_rate hold for each tenant of the queue: it warns. Acts of operators are not recorded on Citus
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
    v_queue  text collate "C" := p_queue;
    v_others text[] collate "C";
    v_key    record;
    v_number bigint;
begin
    if p_queue ^@ 'outbox/' then
        perform pgonce._raise_queue_of_events(p_queue);
    end if;
    perform pg_advisory_xact_lock(pgonce._lock_id('', 'queue rules', p_queue));
    v_was := pgonce._job_rules(p_queue);
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
    -- What follows writes some rows of all servers, and then single ones.
    perform set_config('citus.multi_shard_modify_mode', 'sequential', true);
    insert into pgonce.job_queue as q (tenant, queue, paused, max_attempts, backoff, max_backoff, keep, max_running, max_per_key, rate,
        rate_per, defined_at)
    values (v_row.tenant, v_row.queue, v_row.paused, v_row.max_attempts, v_row.backoff, v_row.max_backoff, v_row.keep,
        v_row.max_running, v_row.max_per_key, v_row.rate, v_row.rate_per, v_row.defined_at)
    on conflict (tenant, queue) do update
       set paused = excluded.paused, max_attempts = excluded.max_attempts, backoff = excluded.backoff,
           max_backoff = excluded.max_backoff, keep = excluded.keep, max_running = excluded.max_running,
           max_per_key = excluded.max_per_key, rate = excluded.rate, rate_per = excluded.rate_per, defined_at = excluded.defined_at;
    if (v_row.rate, v_row.rate_per) is distinct from (v_was.rate, v_was.rate_per) then
        delete from pgonce.job_bucket b where b.queue = v_queue;
    end if;
    if p_queue = '*' then
        -- It says what holds in queues without rules of their own.
        v_others := array(select q.queue from pgonce.job_queue q where q.tenant = '');
    end if;
    if p_max_per_key is not null then
        for v_key in
            select l.tenant::text as tenant, l.queue, l.key from pgonce.job_live l
             where (l.queue = v_queue or l.queue <> all (v_others)) and l.state = 'blocked'
             group by l.tenant, l.queue, l.key
        loop
            v_number := nextval('pgonce.job_seq');
            insert into pgonce.job_recheck (id, tenant, queue, key) values (v_number, v_key.tenant, v_key.queue, v_key.key);
        end loop;
    end if;
    if v_row.max_running is not null then
        -- Those that run count from now on; one whose claim is open, when its lease is renewed.
        update pgonce.job_live l set state = 'limited'
         where (l.queue = v_queue or l.queue <> all (v_others)) and l.state = 'running';
    end if;
    if p_max_running > 0 or p_rate > 0 then
        raise warning 'on Citus the limits of queue "%" hold for each tenant, not for all together', p_queue;
    end if;
end
$$;
