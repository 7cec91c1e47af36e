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
    v_sql pg_catalog.text[] := pgonce._insert_or_fetch_sql(p_index, p_row);
begin
    -- The row in the way may be too young to be seen, or vanish before it is: look again. Run here, with the
    -- caller's search_path, which triggers of the table may rely on; the statements do not.
    for v_look in 1 .. 10 loop
        execute v_sql[1] into stored using p_row;
        made_now := stored is not null;
        if not made_now then
            execute v_sql[2] into stored using p_row;
        end if;
        if stored is null and v_sql[3] is not null then
            -- It is not found by what was passed: a trigger or a generated column made its key, or row level
            -- security hides it. The conflict itself knows the row.
            perform pg_catalog.set_config('pgonce.existing', '', true);
            execute v_sql[3] into stored using p_row;
            made_now := stored is not null;
            stored := coalesce(stored, pgonce._existing_row());
        end if;
        if stored is not null then
            return next;
            return;
        end if;
    end loop;
    perform pgonce._raise_row_not_found(p_index);
end
$$;
