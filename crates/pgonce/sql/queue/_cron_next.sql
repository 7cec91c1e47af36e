-- pgonce._cron_next(p_cron, p_zone, p_after): the first time after p_after that a cron expression names.
-- raises   22023 the expression is wrong, or names no time within five years
-- note     minute hour day month weekday, the last with 0 and 7 for Sunday; where both day and weekday are given, either
--          is enough. A local time that a change of clocks leaves out is taken an hour later; one that comes twice, once
create or replace function pgonce._cron_next(p_cron text, p_zone text, p_after timestamptz)
returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_fields   text[] collate "C" := regexp_split_to_array(btrim(p_cron) collate "C", '[[:space:]]+');
    v_minutes  integer[];
    v_hours    integer[];
    v_days     integer[];
    v_months   integer[];
    v_weekdays integer[];
    v_day      date;
    v_at       timestamptz;
begin
    if cardinality(v_fields) <> 5 or octet_length(p_cron) > 200 then
        raise exception '"%" is no cron expression', left(p_cron, 200) using errcode = '22023',
            hint = 'Five fields: minute hour day month weekday, such as ''0 3 * * 1''.';
    end if;
    v_minutes := pgonce._cron_field(v_fields[1], 0, 59);
    v_hours := pgonce._cron_field(v_fields[2], 0, 23);
    v_days := pgonce._cron_field(v_fields[3], 1, 31);
    v_months := pgonce._cron_field(v_fields[4], 1, 12);
    v_weekdays := array(select distinct n % 7 from unnest(pgonce._cron_field(v_fields[5], 0, 7)) n);
    v_day := (p_after at time zone p_zone)::date;
    for v_step in 0..1830 loop
        if extract(month from v_day)::integer = any (v_months)
           and (case when v_fields[3] = '*' then extract(dow from v_day)::integer = any (v_weekdays)
                    when v_fields[5] = '*' then extract(day from v_day)::integer = any (v_days)
                    else extract(day from v_day)::integer = any (v_days) or extract(dow from v_day)::integer = any (v_weekdays) end) then
            select min(t.at) into v_at
              from unnest(v_hours) h cross join unnest(v_minutes) m
             cross join lateral (select (v_day + make_time(h, m, 0)) at time zone p_zone as at) t
             where t.at > p_after;
            if v_at is not null then
                return v_at;
            end if;
        end if;
        v_day := v_day + 1;
    end loop;
    raise exception '"%" names no time within five years', p_cron using errcode = '22023',
        hint = 'For example ''0 3 * * 1'': at three o''clock on Mondays.';
end
$$;
