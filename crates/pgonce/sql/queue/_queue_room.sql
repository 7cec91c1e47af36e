-- pgonce._queue_room(p_rules, p_queue, p_limit): how many jobs of a queue with limits may be started now.
-- answers  at most p_limit
-- locks    jobs of tenants that the session does not act for, whose lease is over, where there are too few places; the caller holds
--          the queue's advisory lock
-- writes   the queue's row of pgonce.job_bucket: what the time since the last claim has added
-- note     limits are of all tenants, also for a session that acts for one
create or replace function pgonce._queue_room(p_rules pgonce.job_queue, p_queue text, p_limit integer)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_room   bigint := p_limit;
    v_now    timestamptz := pgonce.now();
    v_tokens double precision;
begin
    if (p_rules).max_running is not null then
        select (p_rules).max_running - count(*) into v_room
          from pgonce.job_running l where l.queue = p_queue collate "C" and l.state = 'limited';
        if v_room < p_limit and not pgonce._tenant_is_allowed('') then
            -- This session is bound, and cannot give the jobs of others back when their lease is over: they hold no place any
            -- more. Locked, so that none is renewed meanwhile; one that somebody has locked is being renewed or finished.
            select v_room + count(*) into v_room
              from (select from pgonce.job_running l
                     where l.queue = p_queue collate "C" and l.state = 'limited' and l.due_at <= v_now
                       and not pgonce._tenant_is_allowed(l.tenant)
                       for update skip locked) x;
        end if;
    end if;
    if (p_rules).rate is not null and v_room > 0 then
        insert into pgonce.job_bucket as b (queue, tokens, filled_at) values (p_queue, (p_rules).rate, v_now)
        on conflict on constraint one_bucket_per_queue do update
           set filled_at = greatest(b.filled_at, v_now),
               tokens = least((p_rules).rate, b.tokens + (p_rules).rate
                   * (extract(epoch from greatest(v_now - b.filled_at, interval '0')) / extract(epoch from (p_rules).rate_per))::double precision)
        returning b.tokens into v_tokens;
        v_room := least(v_room, floor(v_tokens)::bigint);
    end if;
    return greatest(least(v_room, p_limit), 0);
end
$$;
