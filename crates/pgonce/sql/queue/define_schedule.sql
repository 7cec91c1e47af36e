-- pgonce.define_schedule(p_name, p_cron, p_queue, p_payload, p_zone, p_tenant): enqueues a job again and again, at the times of
--          a cron expression. p_cron null ends it.
-- answers  when the next job is enqueued; null where it was ended
-- locks    the schedule's row
-- writes   one row of pgonce.job_schedule; where it changes, one of pgonce.operator_act
-- raises   22023 a bad expression, zone or name
-- note     any worker that claims jobs enqueues what is due; of many, one does. Defined again at the same times, a job that is due
--          is still enqueued; at other times, only those count
-- example  select pgonce.define_schedule('nightly', '0 3 * * *', 'reports', '{"kind": "daily"}', 'Europe/Berlin');
create or replace function pgonce.define_schedule(p_name text, p_cron text, p_queue text default null, p_payload jsonb default null,
    p_zone text default 'UTC', p_tenant text default '')
returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_next   timestamptz;
    v_before jsonb := (select to_jsonb(s) - 'next_at' from pgonce.job_schedule s
        where s.tenant = p_tenant collate "C" and s.name = p_name collate "C");
begin
    if p_cron is null then
        delete from pgonce.job_schedule s where s.tenant = p_tenant collate "C" and s.name = p_name collate "C";
        perform pgonce._audit_rules('schedule ' || p_name, v_before, null, 'drop', p_tenant);
        return null;
    end if;
    if (octet_length(p_name) between 1 and 200) is not true or (octet_length(p_queue) between 1 and 200) is not true
       or p_queue = '*' or (octet_length(p_tenant) <= 255) is not true
       or not exists (select from pg_catalog.pg_timezone_names z where z.name = p_zone) then
        raise exception 'a schedule needs a name and a queue of 1 to 200 bytes, and a time zone that the server knows' using errcode = '22023',
            hint = 'For example: pgonce.define_schedule(''nightly'', ''0 3 * * *'', ''reports'', p_zone => ''Europe/Berlin'').';
    end if;
    v_next := pgonce._cron_next(p_cron, p_zone, pgonce.now());
    insert into pgonce.job_schedule as s (tenant, name, cron, zone, queue, payload, next_at)
    values (p_tenant, p_name, p_cron, p_zone, p_queue, p_payload, v_next)
    on conflict on constraint one_row_per_schedule do update
       set cron = excluded.cron, zone = excluded.zone, queue = excluded.queue, payload = excluded.payload,
           -- A time that has come and that nobody was there for is not forgotten where a program defines its schedules anew.
           next_at = case when s.cron = excluded.cron and s.zone = excluded.zone then least(s.next_at, excluded.next_at)
               else excluded.next_at end
    returning s.next_at into v_next;
    perform pgonce._audit_rules('schedule ' || p_name, v_before, (select to_jsonb(s) - 'next_at' from pgonce.job_schedule s
        where s.tenant = p_tenant collate "C" and s.name = p_name collate "C"), p_tenant => p_tenant);
    return v_next;
end
$$;
