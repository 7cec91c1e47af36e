-- pgonce._create_inbox_partitions(): creates the partitions of markers for today and the next two days.
-- answers  how many it created
-- locks    the markers against other changes of their partitions; those in inbox_marker_default while PostgreSQL looks
--          through them for the new day: writers of other days do not wait. Waits at most a moment for writers, then leaves
--          it to the next call
-- note     with the owner's rights: consumers call it. A day for which markers are in inbox_marker_default
--          already stays there: PostgreSQL itself refuses the partition. No other day does
create or replace function pgonce._create_inbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    v_today date := (pgonce.now() at time zone 'UTC')::date;
    v_there date[];
    v_day   date;
    v_name  text;
    v_count integer := 0;
begin
    perform from pgonce.sweep w where w.tenant = '' and w.name = 'inbox_marker_default' for update;
    select array_agg(distinct r.day) into v_there from pgonce.inbox_marker_default r where r.day between v_today and v_today + 2;
    for v_ahead in 0..2 loop
        v_day := v_today + v_ahead;
        v_name := 'inbox_marker_' || to_char(v_day, 'YYYYMMDD');
        if (v_day = any (v_there)) is not true and to_regclass('pgonce.' || v_name) is null then
            -- Made apart and attached: to create it as a partition would lock all markers.
            execute format('create table pgonce.%I (like pgonce.inbox_marker including all)', v_name);
            execute format('alter table pgonce.inbox_marker attach partition pgonce.%I for values from (%L) to (%L)',
                v_name, v_day, v_day + 1);
            v_count := v_count + 1;
        end if;
    end loop;
    return v_count;
exception when lock_not_available or check_violation then
    -- The second: a marker of the day came meanwhile. The next call sees it.
    return 0;
end
$$;
revoke execute on function pgonce._create_inbox_partitions() from public;
