-- pgonce._raise_no_row(): says that the statement of a command returned no row, where only an expression fits.
-- raises   22023, always
create or replace function pgonce._raise_no_row()
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the statement of the command returned no row' using errcode = '22023',
        detail = 'Everything was rolled back, and nothing is recorded.',
        hint = 'The row that the statement returns is the answer: let it return exactly one.';
end
$$;
