-- pgonce._raise_nothing_to_set(p_index): says that a row has no column beside its key.
-- raises   22023, always
create or replace function pgonce._raise_nothing_to_set(p_index regclass)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the row has nothing to set beside the columns of %', p_index using errcode = '22023',
        hint = 'Pass the columns of the unique index, which find the row, and those to set.';
end
$$;
