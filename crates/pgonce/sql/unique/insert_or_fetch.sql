-- pgonce.insert_or_fetch(p_index, p_row): inserts a row, or returns the row that exists: one row for each
--          business fact.
-- answers  one row: made_now true, this call inserted it; false, it existed, with all its columns as they are
--          stored
-- locks    what an insert locks. A row that existed is locked only where a trigger, a generated column or
--          nulls that are not distinct decide which one it is
-- writes   at most one row of the table of the index; never an update
-- raises   22023 p_index is not a unique index that is checked at once, or p_row has an unknown column; 23505
--          another constraint was violated; 40001 under REPEATABLE READ when another transaction made the
--          row; 42501 the existing row is hidden by row level security; P4099 the row neither fits nor is
--          found
-- note     p_index may be partial or over expressions: columns, operators and predicate come from the
--          catalogue. Columns that p_row leaves out get their defaults
-- example  create temporary table invoice (number text primary key, total integer);
--          select * from pgonce.insert_or_fetch('invoice_pkey', '{"number": "2026-7", "total": 40}');
--          select * from pgonce.insert_or_fetch('invoice_pkey', '{"number": "2026-7", "total": 41}');
create or replace function pgonce.insert_or_fetch(p_index regclass, p_row jsonb)
returns table (made_now boolean, stored jsonb)
language plpgsql volatile
as $$
declare
    v_table     regclass;
    v_predicate text;
    v_keys      text;
    v_columns   text;
    v_unknown   text;
    v_insert    text;
    v_fetch     text;
begin
    select i.indrelid::regclass, pg_get_expr(i.indpred, i.indrelid),
           (select string_agg(pg_get_indexdef(i.indexrelid, n, false), ', ' order by n)
              from generate_series(1, i.indnkeyatts) n)
      into v_table, v_predicate, v_keys
      from pg_catalog.pg_index i
     where i.indexrelid = p_index and i.indisunique;
    if not found then
        raise exception '% is not a unique index', coalesce(p_index::text, 'null') using errcode = '22023',
            hint = 'Name the unique index or constraint that says what may exist only once.';
    end if;
    select string_agg(format('%I', k), ', ') filter (where a.attnum is not null),
           string_agg(format('%I', k), ', ') filter (where a.attnum is null)
      into v_columns, v_unknown
      from jsonb_object_keys(p_row) k
      left join pg_catalog.pg_attribute a
        on a.attrelid = v_table and a.attname = k and a.attnum > 0 and not a.attisdropped;
    if v_unknown is not null or v_columns is null then
        raise exception 'the row does not fit table %: %', v_table,
            coalesce('it has no column ' || v_unknown, 'the row is empty')
            using errcode = '22023', hint = 'Pass a JSON object of column names and values.';
    end if;

    v_insert := format('insert into %s as t (%s) select %2$s from jsonb_populate_record(null::%1$s, $1) '
        'on conflict (%3$s)%4$s do nothing returning to_jsonb(t.*)',
        v_table, v_columns, v_keys, coalesce(' where ' || v_predicate, ''));
    -- In the inner query the names of the key columns mean the row that was passed.
    v_fetch := format('select to_jsonb(t.*) from %s t where row(%s) = (select %2$s from '
        'jsonb_populate_record(null::%1$s, $1))%3$s',
        v_table, v_keys, coalesce(' and ' || v_predicate, ''));

    -- The row in the way may be too young to be seen, or vanish before it is: look again.
    for v_look in 1 .. 10 loop
        execute v_insert into stored using p_row;
        made_now := stored is not null;
        if not made_now then
            execute v_fetch into stored using p_row;
        end if;
        if stored is not null then
            return next;
            return;
        end if;
    end loop;
    raise exception 'the row neither fits into % nor is found by %', v_table, p_index using errcode = 'P4099',
        hint = 'Pass every column of the index, none of them null. If it persists, please report it.';
end
$$;
