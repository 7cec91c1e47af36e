-- pgonce._claim_queue on Citus: as queue/_claim_queue.sql, for one tenant, on the server that has its rows.
-- locks    as there; instead of the queue's advisory lock, its row of pgonce.job_bucket; and the rows of jobs that others are put
--          behind: who ends one of those waits for this transaction, and sees them
create or replace function pgonce._claim_queue(p_queue text, p_owner text, p_lease interval, p_limit integer, p_tenant text)
returns table (tenant text, id bigint, fence bigint, attempts integer, queue text, key text, payload jsonb, created_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_queue  text collate "C" := p_queue;
    v_rules  pgonce.job_queue := pgonce._job_rules(p_queue);
    v_state  pgonce.job_state := case when v_rules.max_running is null then 'running' else 'limited' end;
    v_take   integer := p_limit;
    v_look   integer := 0;
    v_jobs   bigint[];
    v_keyed  bigint[];
    v_free   bigint[];
    v_behind bigint[];
    v_keys   text[] collate "C";
    v_passed text[] collate "C" := '{}';
    v_count  integer;
    v_job    record;
    v_other  bigint;
    v_locked boolean := false;
    v_open   boolean;
    v_last   bigint;
    v_due    timestamptz;
    v_key    text collate "C";
    v_ids    bigint[];
    v_tries  integer[];
    v_names  text[];
    v_ranks  smallint[];
    v_loads  jsonb[];
    v_times  timestamptz[];
begin
    if v_rules.paused then
        return;
    end if;
    if v_rules.max_running is not null or v_rules.rate is not null then
        v_locked := pgonce._lock_queue(v_rules, v_queue, v_tenant);
        v_take := case when v_locked then pgonce._queue_room(v_rules, v_queue, v_take, v_tenant) else 0 end;
    end if;
    -- Jobs whose turn it is not are put aside, and others looked for; not without end.
    for v_round in 1..20 loop
        exit when v_take <= 0;
        v_count := greatest(v_take, v_look);
        v_jobs := '{}';
        v_keyed := '{}';
        v_last := 0;
        for v_job in
            select l.id, l.key, l.fence from pgonce.job_live l
             where l.tenant = v_tenant and l.queue = v_queue and l.state = 'ready' and (l.key is null or l.key <> all (v_passed))
             order by l.priority desc, l.id limit v_count for update skip locked
        loop
            v_jobs := v_jobs || v_job.id;
            v_last := greatest(v_last, v_job.fence);
            if v_job.key is not null then
                v_keyed := v_keyed || v_job.id;
            end if;
        end loop;
        exit when cardinality(v_jobs) = 0;
        v_behind := '{}';
        v_keys := '{}';
        v_free := v_jobs;
        v_open := false;
        if cardinality(v_keyed) > 0 then
            v_locked := v_locked or pgonce._lock_queue(v_rules, v_queue, v_tenant);
            -- A new statement, so that it sees what was committed before the lock was ours.
            for v_job in
                select l.id, l.key, (select count(*) from (
                       select 1 from pgonce.job_live o
                        where o.tenant = v_tenant and o.queue = v_queue and o.key = l.key
                          and (o.state in ('retrying', 'running', 'limited') or o.state in ('ready', 'blocked') and o.id < l.id)
                        limit v_rules.max_per_key) b) as before
                  from pgonce.job_live l where l.tenant = v_tenant and l.id = any (v_keyed) order by l.id
            loop
                continue when v_locked and v_job.before < v_rules.max_per_key;
                v_free := array_remove(v_free, v_job.id);
                v_count := 0;
                if v_job.key = any (v_keys) then
                    -- Those that an earlier one of the key was put behind come before this one too.
                    v_count := v_rules.max_per_key;
                elsif v_locked then
                    for v_other in
                        select o.id from pgonce.job_live o
                         where o.tenant = v_tenant and o.queue = v_queue and o.key = v_job.key
                           and (o.state in ('retrying', 'running', 'limited') or o.state in ('ready', 'blocked') and o.id < v_job.id)
                         order by o.id limit v_rules.max_per_key for share skip locked
                    loop
                        v_count := v_count + 1;
                    end loop;
                end if;
                if v_locked and v_count >= v_rules.max_per_key then
                    v_behind := v_behind || v_job.id;
                    v_keys := v_keys || v_job.key;
                else
                    -- One before it is about to end: nobody would see that this one waits for it.
                    v_passed := v_passed || v_job.key;
                    v_open := true;
                end if;
            end loop;
            if cardinality(v_behind) > 0 then
                update pgonce.job_live l set state = 'blocked' where l.tenant = v_tenant and l.id = any (v_behind);
                -- Those before them may have been passed over for their sake.
                foreach v_key in array array(select distinct k from unnest(v_keys) k) loop
                    perform pgonce._unblock_key(v_tenant, v_queue, v_key);
                end loop;
            end if;
        end if;
        -- Room is left for those whose turn comes because of others that were put aside: they may come before these.
        v_jobs := v_free[1:greatest(v_take - cardinality(v_behind), 0)];
        v_count := coalesce(cardinality(v_jobs), 0);
        if v_count > 0 then
            v_last := pgonce._lease_fence(v_last, v_tenant);
            v_due := pgonce.now() + p_lease;
            update pgonce.job_live l
               set state = v_state, attempts = l.attempts + 1, fence = v_last, owner = p_owner, due_at = v_due
             where l.tenant = v_tenant and l.id = any (v_jobs);
            -- One table at a time: of a join in a delegated function Citus does not see whose it is.
            select array_agg(l.id), array_agg(l.attempts), array_agg(l.key::text), array_agg(l.priority)
              into v_ids, v_tries, v_names, v_ranks from pgonce.job_live l where l.tenant = v_tenant and l.id = any (v_jobs);
            select array_agg(j.id), array_agg(j.payload), array_agg(j.created_at) into v_jobs, v_loads, v_times
              from pgonce.job j where j.tenant = v_tenant and j.id = any (v_jobs);
            return query
                select p_tenant, l.id, v_last, l.attempts, p_queue, l.key, j.payload, j.created_at
                  from unnest(v_ids, v_tries, v_names, v_ranks) l (id, attempts, key, rank)
                  join unnest(v_jobs, v_loads, v_times) j (id, payload, created_at) on j.id = l.id
                 order by l.rank desc, l.id;
            v_take := v_take - v_count;
            if v_rules.rate is not null then
                update pgonce.job_bucket b set tokens = b.tokens - v_count where b.tenant = v_tenant and b.queue = v_queue;
            end if;
        end if;
        exit when cardinality(v_behind) = 0 and not v_open;
        -- Wider each time, so that there are not too many of them.
        v_look := least(greatest(v_look, v_take) * 2, 1000);
    end loop;
end
$$;
