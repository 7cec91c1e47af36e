-- pgonce._fire_schedules(): enqueues the jobs of schedules whose time has come, each once however many workers call this.
-- locks    the rows of those schedules, and none that is locked
-- writes   one job for each, with a unique key of the schedule's name and the time; times that nobody was there for are
--          one job, not many
-- note     a schedule that cannot be enqueued must not keep workers from their jobs: it is tried again in an hour, or by
--          the next claim where the error is transient, with a warning in the server's log
create or replace function pgonce._fire_schedules()
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := pgonce.now();
    v_plan pgonce.job_schedule;
    v_key  text;
begin
    for v_plan in select s.* from pgonce.job_schedule s where s.next_at <= v_now order by s.next_at limit 100 for update skip locked loop
        begin
            v_key := 'schedule ' || v_plan.name || ' ' || to_char(v_plan.next_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"');
            -- A clock that went back names times again.
            if not exists (select from pgonce.job j where j.tenant = v_plan.tenant and j.queue = v_plan.queue and j.unique_key = v_key) then
                perform pgonce.enqueue(v_plan.queue, v_plan.payload, p_unique_key => v_key, p_tenant => v_plan.tenant);
            end if;
            update pgonce.job_schedule s set last_at = v_plan.next_at, next_at = pgonce._cron_next(v_plan.cron, v_plan.zone, v_now)
             where s.tenant = v_plan.tenant and s.name = v_plan.name;
        exception when others then
            raise warning 'schedule "%" could not be enqueued: % [%]', v_plan.name, sqlerrm, sqlstate;
            if left(sqlstate, 2) not in ('40', '53', '55', '57') then
                update pgonce.job_schedule s set next_at = v_now + interval '1 hour'
                 where s.tenant = v_plan.tenant and s.name = v_plan.name;
            end if;
        end;
    end loop;
end
$$;
