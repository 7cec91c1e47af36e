-- pgonce._claim_queue(p_queue, p_owner, p_lease, p_limit): claims jobs of one queue.
-- answers  the jobs, at most p_limit and what the queue's limits leave
-- locks    the rows it gives, and none that another worker holds; where there are limits or keys, the queue's advisory
--          lock, without waiting: without it nothing that is limited is taken
-- writes   the state, one attempt more and a new fence of each; blocked where it is not a job's turn
-- note     for a job with a key the claim alone decides, under the queue's lock and after it: fewer jobs of the key than
--          may run must be running, waiting for a retry, or before it. The states ready and blocked only save it looking.
--          A key about which it cannot decide, since a transaction that ends a job of it is still open, is passed over
create or replace function pgonce._claim_queue(p_queue text, p_owner text, p_lease interval, p_limit integer)
returns table (tenant text, id bigint, fence bigint, attempts integer, queue text, key text, payload jsonb, created_at timestamptz)
-- A limit that is known makes a plan for each call look cheaper, and planning is half of a claim. A plan that is kept must not
-- be that of the empty table that it was made for.
language plpgsql volatile set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_rules  pgonce.job_queue := pgonce._job_rules(p_queue);
    v_take   integer := p_limit;
    v_tids   tid[];
    v_free   tid[];
    v_behind tid[];
    v_open   pgonce.job_recheck[];
    v_passed pgonce.job_recheck[] := '{}';
    v_look   integer := 0;
    v_job    pgonce.job_live;
    v_keyed  boolean;
    v_locked boolean := false;
    v_last   bigint;
    v_count  integer;
begin
    if v_rules.paused then
        return;
    end if;
    if v_rules.max_running is not null or v_rules.rate is not null then
        v_locked := pg_try_advisory_xact_lock(pgonce._lock_id('', 'queue', p_queue));
        v_take := case when v_locked then pgonce._queue_room(v_rules, p_queue, v_take) else 0 end;
    end if;
    -- Jobs whose turn it is not are put aside, and others looked for; not without end.
    for v_round in 1..20 loop
        exit when v_take <= 0;
        select array_agg(d.ctid), bool_or(d.key is not null), max(d.fence) into v_tids, v_keyed, v_last
          from (select l.ctid, l.key, l.fence from pgonce.job_live l
                 where l.queue = p_queue collate "C" and l.state = 'ready'
                   and (l.key is null or cardinality(v_passed) = 0 or v_locked and not exists (
                       select from unnest(v_passed) p where p.tenant = l.tenant and p.key = l.key and p.id <= l.id))
                 order by l.priority desc, l.id limit greatest(v_take, v_look) for update skip locked) d;
        exit when v_tids is null;
        v_behind := null;
        v_open := null;
        if v_keyed then
            v_locked := v_locked or pg_try_advisory_xact_lock(pgonce._lock_id('', 'queue', p_queue));
            -- A new statement, so that it sees what was committed before the lock was ours.
            select array_agg(c.ctid order by c.priority desc, c.id) filter (where c.free), array_agg(c.ctid) filter (where c.behind),
                   array_agg(row(c.id, c.tenant, p_queue, c.key)::pgonce.job_recheck) filter (where not c.free and not c.behind)
              into v_free, v_behind, v_open
              from (select l.ctid, l.id, l.priority, l.tenant, l.key,
                           l.key is null or v_locked and h.before < v_rules.max_per_key as free,
                           v_locked and h.before >= v_rules.max_per_key
                           and pg_try_advisory_xact_lock_shared(pgonce._job_key_lock(l.tenant, l.queue, l.key)) as behind
                      from pgonce.job_live l
                      left join lateral (
                           select count(*) as before from (
                               select from pgonce.job_live o
                                where o.tenant = l.tenant and o.queue = l.queue and o.key = l.key
                                  and (o.state in ('retrying', 'running', 'limited')
                                       or o.state in ('ready', 'blocked') and o.id < l.id)
                                limit v_rules.max_per_key) b) h on l.key is not null
                     where l.ctid = any (v_tids)) c;
            v_tids := v_free;
            if v_open is not null then
                v_passed := v_passed || array(select distinct on (o.tenant, o.key) o from unnest(v_open) o order by o.tenant, o.key, o.id);
            end if;
            if v_behind is not null then
                -- Once more, now that the lock keeps those who end jobs from missing them.
                for v_job in update pgonce.job_live l set state = 'blocked'
                 where l.ctid = any (v_behind)
                   and (select count(*) from (
                           select from pgonce.job_live o
                            where o.tenant = l.tenant and o.queue = l.queue and o.key = l.key
                              and (o.state in ('retrying', 'running', 'limited')
                                   or o.state in ('ready', 'blocked') and o.id < l.id)
                            limit v_rules.max_per_key) b) >= v_rules.max_per_key
                returning l.*
                loop
                    -- Those before it may have been passed over for its sake.
                    perform pgonce._unblock_key(v_job.tenant, p_queue, v_job.key);
                end loop;
            end if;
        end if;
        -- Room is left for those whose turn comes because of others that were put aside: they may come before these.
        v_tids := v_tids[1:v_take - coalesce(cardinality(v_behind), 0)];
        if cardinality(v_tids) > 0 then
            v_last := pgonce._lease_fence(coalesce(v_last, 0));
            return query
                with taken as (
                    update pgonce.job_live l
                       set state = (case when v_rules.max_running is null then 'running' else 'limited' end)::pgonce.job_state,
                           attempts = l.attempts + 1, fence = v_last, owner = p_owner, due_at = pgonce.now() + p_lease
                     where l.ctid = any (v_tids)
                    returning l.tenant, l.id, l.fence, l.attempts, l.queue, l.key, l.priority
                )
                select t.tenant::text, t.id, t.fence, t.attempts, t.queue::text, t.key::text, j.payload, j.created_at
                  from taken t join pgonce.job j on j.tenant = t.tenant and j.id = t.id
                 order by t.priority desc, t.id;
            get diagnostics v_count = row_count;
            v_take := v_take - v_count;
            if v_rules.rate is not null then
                update pgonce.job_bucket b set tokens = b.tokens - v_count where b.tenant = '' and b.queue = p_queue collate "C";
            end if;
        end if;
        exit when v_behind is null and v_open is null;
        -- Wider each time, so that there are not too many of them.
        v_look := least(greatest(v_look, v_take) * 2, 1000);
    end loop;
end
$$;
