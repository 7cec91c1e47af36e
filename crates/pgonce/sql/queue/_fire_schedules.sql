-- pgonce._fire_schedules(): enqueues the jobs of schedules whose time has come, each once however many workers call this.
-- locks    the rows of those schedules, and none that is locked
-- writes   one job for each, with a unique key of the schedule's name and the time; times that nobody was there for are
--          one job, not many
create or replace function pgonce._fire_schedules()
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := pgonce.now();
    v_plan pgonce.job_schedule;
begin
    for v_plan in select s.* from pgonce.job_schedule s where s.next_at <= v_now order by s.next_at limit 100 for update skip locked loop
        perform pgonce.enqueue(v_plan.queue, v_plan.payload,
            p_unique_key => left('schedule ' || v_plan.name, 200) || ' ' || to_char(v_plan.next_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"'),
            p_tenant => v_plan.tenant);
        update pgonce.job_schedule s set last_at = v_plan.next_at, next_at = pgonce._cron_next(v_plan.cron, v_plan.zone, v_now)
         where s.tenant = v_plan.tenant and s.name = v_plan.name;
    end loop;
end
$$;
