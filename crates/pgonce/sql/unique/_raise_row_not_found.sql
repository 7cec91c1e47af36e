-- pgonce._raise_row_not_found(p_index): says that a row neither fits nor is found.
-- raises   P4099, always
create or replace function pgonce._raise_row_not_found(p_index regclass)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the row neither fits nor is found by %', p_index using errcode = 'P4099',
        hint = 'Another transaction may insert and delete it again and again: retry. If it persists, please report it.';
end
$$;
