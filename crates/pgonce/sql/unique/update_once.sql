-- pgonce.update_once(p_index, p_row, p_expected): changes a row once: columns that have no value yet, or a row that is as
--          expected.
-- answers  one row: outcome applied; already, the row has these values; stale, it is not as expected; lost_race, it was
--          when the call began, and another transaction came first; missing, there is no such row. stored is the
--          row as it is now, or as it was met
-- locks    the row
-- writes   the row, where applied
-- raises   22023 p_index is not a unique index that is checked at once, p_row or p_expected has an unknown column, or there is
--          nothing to set
-- note     p_row holds the columns of the unique index, which find the row, and those to set. Without p_expected these
--          must be null: the first value stays. With it the row must have the values that it names, such as a
--          state or a version
-- example  create temporary table parcel (number text primary key, state text, version integer, delivered_at date);
--          insert into parcel values ('P-1', 'sent', 1);
--          select outcome from pgonce.update_once('parcel_pkey', '{"number": "P-1", "delivered_at": "2026-01-31"}');
--          select outcome from pgonce.update_once('parcel_pkey', '{"number": "P-1", "state": "arrived", "version": 2}',
--              '{"version": 1}');
create or replace function pgonce.update_once(p_index regclass, p_row jsonb, p_expected jsonb default null)
returns table (outcome text, stored jsonb)
language plpgsql volatile
as $$
declare
    v_sql      pg_catalog.text[] := pgonce._insert_or_fetch_sql(p_index, p_row);
    v_wanted   pg_catalog.jsonb;
    v_expected pg_catalog.jsonb;
    v_names    pg_catalog.jsonb := v_sql[5];
    v_before   pg_catalog.jsonb;
begin
    if v_sql[4] is null then
        perform pgonce._raise_nothing_to_set(p_index);
    end if;
    -- As the columns' types write them.
    execute v_sql[6] into v_wanted using p_row;
    execute v_sql[6] into v_expected using coalesce(p_expected, '{}');
    -- A name that no column has would be equal to itself, and the row as expected whatever it is.
    if p_expected is not null
        and not v_expected operator(pg_catalog.?&) array(select pg_catalog.jsonb_object_keys(p_expected))
    then
        perform pgonce._insert_or_fetch_sql(p_index, p_expected);
    end if;
    execute v_sql[2] into v_before using p_row;
    execute pg_catalog.concat(v_sql[2], ' for no key update of t') into stored using p_row;
    if stored is null then
        outcome := 'missing';
    elsif pgonce._row_has(stored, v_expected, coalesce(p_expected, v_names)) then
        execute v_sql[4] into stored using p_row;
        outcome := 'applied';
    elsif pgonce._row_has(stored, v_wanted, v_names) then
        outcome := 'already';
    elsif pgonce._row_has(v_before, v_expected, coalesce(p_expected, v_names)) then
        outcome := 'lost_race';
    else
        outcome := 'stale';
    end if;
    return next;
end
$$;
