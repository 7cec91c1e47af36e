-- pgonce._cron_field(p_field, p_low, p_high): the numbers that a field of a cron expression stands for.
-- answers  sorted, without duplicates
-- raises   22023 it is no list of *, n, n-m, each with /step
create or replace function pgonce._cron_field(p_field text, p_low integer, p_high integer)
returns integer[]
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_part  text collate "C";
    v_match text[] collate "C";
    v_from  integer;
    v_to    integer;
    v_all   integer[] := '{}';
begin
    foreach v_part in array string_to_array(p_field, ',') loop
        v_match := regexp_match(v_part, '^(\*|([0-9]{1,2})(-([0-9]{1,2}))?)(/([0-9]{1,2}))?$');
        v_from := coalesce(v_match[2]::integer, p_low);
        v_to := coalesce(v_match[4]::integer, case when v_match[2] is null or v_match[6] is not null then p_high else v_from end);
        if v_match is null or v_from < p_low or v_to > p_high or v_from > v_to or v_match[6]::integer = 0 then
            raise exception '"%" is no field of a cron expression from % to %', p_field, p_low, p_high using errcode = '22023',
                hint = 'Lists of *, 5, 1-5, each with a step such as */15.';
        end if;
        v_all := v_all || array(select generate_series(v_from, v_to, coalesce(v_match[6]::integer, 1)));
    end loop;
    return array(select distinct n from unnest(v_all) n order by n);
end
$$;
