-- pgonce._wake_jobs on Citus: as queue/_wake_jobs.sql, for one tenant.
create or replace function pgonce._wake_jobs(p_limit integer, p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_now timestamptz := pgonce.now();
    v_job pgonce.job_live;
    v_key pgonce.job_recheck;
begin
    perform pgonce._fire_schedules(v_tenant);
    for v_job in
        select l.* from pgonce.job_live l
         where l.tenant = v_tenant and l.state in ('scheduled', 'retrying', 'running', 'limited') and l.due_at <= v_now
         order by l.due_at limit p_limit for update skip locked
    loop
        if v_job.state in ('running', 'limited') and v_job.attempts >= (pgonce._job_rules(v_job.queue)).max_attempts then
            perform pgonce._end_job(v_job, 'dead', 'abandoned', format('its workers vanished, attempt %s was the last', v_job.attempts));
        else
            update pgonce.job_live l set state = 'ready', due_at = null, owner = null
             where l.tenant = v_tenant and l.id = v_job.id;
            -- It held its key; now an earlier one of the key comes first.
            if v_job.key is not null and v_job.state <> 'scheduled' then
                perform pgonce._unblock_key(v_tenant, v_job.queue, v_job.key);
            end if;
        end if;
    end loop;
    for v_key in select r.* from pgonce.job_recheck r where r.tenant = v_tenant order by r.id limit 100 for update skip locked loop
        delete from pgonce.job_recheck r where r.tenant = v_tenant and r.id = v_key.id;
        perform pgonce._unblock_key(v_tenant, v_key.queue, v_key.key);
    end loop;
end
$$;
