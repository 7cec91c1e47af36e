-- pgonce._raise_bad_version(p_projection, p_entity, p_version): says that a projection cannot move forward so.
-- raises   22023, always
create or replace function pgonce._raise_bad_version(p_projection text, p_entity text, p_version bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'a projection moves forward by its name, an entity of 1 to 255 bytes and a version' using errcode = '22023',
        detail = format('Projection %s, entity %s, version %s.', quote_nullable(p_projection), quote_nullable(p_entity),
            coalesce(p_version::text, 'null')),
        hint = 'For example: pgonce.advance_projection(''profile'', ''user-7'', 3).';
end
$$;
