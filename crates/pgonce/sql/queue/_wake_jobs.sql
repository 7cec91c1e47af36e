-- pgonce._wake_jobs(p_limit): what time brings: schedules are enqueued, scheduled jobs and retries become ready, and jobs
--          whose worker vanished are given to others.
-- locks    the rows it changes, and none that is locked
-- writes   state ready; dead for a job whose workers vanished as often as it may be tried
create or replace function pgonce._wake_jobs(p_limit integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgonce.now();
    v_job pgonce.job_live;
    v_key pgonce.job_recheck;
    v_met text[] := '{}';
    v_tids tid[];
begin
    perform pgonce._fire_schedules();
    for v_job in
        select l.* from pgonce.job_live l
         where l.state in ('scheduled', 'retrying', 'running', 'limited') and l.due_at <= v_now
         order by l.due_at limit p_limit for update skip locked
    loop
        if v_job.state in ('running', 'limited') and v_job.attempts >= (pgonce._job_rules(v_job.queue)).max_attempts then
            perform pgonce._end_job(v_job, 'dead', 'abandoned', format('its workers vanished, attempt %s was the last', v_job.attempts));
        else
            update pgonce.job_live l set state = 'ready', due_at = null, owner = null
             where l.tenant = v_job.tenant and l.id = v_job.id;
            -- It held its key; now an earlier one of the key comes first.
            if v_job.key is not null and v_job.state <> 'scheduled' then
                perform pgonce._unblock_key(v_job.tenant, v_job.queue, v_job.key);
            end if;
        end if;
    end loop;
    v_tids := array(select r.ctid from pgonce.job_recheck r order by r.tenant, r.id limit 101);
    if cardinality(v_tids) > 100 then
        -- In no order: keys about which nobody can decide yet, since a transaction stays open, must not stand before others.
        v_tids := array(select r.ctid from pgonce.job_recheck r order by random() limit 100);
    end if;
    for v_key in select r.* from pgonce.job_recheck r where r.ctid = any (v_tids) for update skip locked loop
        -- Of each key one row is enough.
        if jsonb_build_array(v_key.tenant, v_key.queue, v_key.key)::text = any (v_met)
           or pg_try_advisory_xact_lock(pgonce._job_key_lock(v_key.tenant, v_key.queue, v_key.key)) then
            delete from pgonce.job_recheck r where r.tenant = v_key.tenant and r.id = v_key.id;
        else
            v_met := v_met || jsonb_build_array(v_key.tenant, v_key.queue, v_key.key)::text;
        end if;
        perform pgonce._unblock_key(v_key.tenant, v_key.queue, v_key.key);
    end loop;
end
$$;
