-- pgonce._fire_schedules on Citus: as queue/_fire_schedules.sql, for one tenant.
create or replace function pgonce._fire_schedules(p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever the others of its arguments are compared with: Citus takes a tenant with another collation for another one.
    v_tenant text collate "default" := p_tenant;
    v_now  timestamptz := pgonce.now();
    v_next timestamptz;
    v_plan pgonce.job_schedule;
    v_key  text;
begin
    for v_plan in
        select s.* from pgonce.job_schedule s where s.tenant = v_tenant and s.next_at <= v_now
         order by s.next_at limit 100 for update skip locked
    loop
        begin
            v_key := 'schedule ' || v_plan.name || ' ' || to_char(v_plan.next_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI"Z"');
            v_next := pgonce._cron_next(v_plan.cron, v_plan.zone, v_now);
            -- A clock that went back names times again.
            perform 1 from pgonce.job j
              where j.tenant = v_tenant and j.queue = v_plan.queue and j.unique_key = v_key collate "C";
            if not found then
                perform from pgonce._enqueue_tenant_job(v_plan.queue, v_plan.payload, v_key, null, 0, null, null, v_tenant);
            end if;
            update pgonce.job_schedule s set last_at = v_plan.next_at, next_at = v_next
             where s.tenant = v_tenant and s.name = v_plan.name;
        exception when others then
            raise warning 'schedule "%" could not be enqueued: % [%]', v_plan.name, sqlerrm, sqlstate;
            if left(sqlstate, 2) not in ('40', '53', '55', '57') then
                v_next := v_now + interval '1 hour';
                update pgonce.job_schedule s set next_at = v_next where s.tenant = v_tenant and s.name = v_plan.name;
            end if;
        end;
    end loop;
end
$$;
