-- pgonce._canonical_json(p_value): the canonical text of a JSON value (RFC 8785), integers exact.
-- answers  no white space; members in the order of their names in UTF-16 code units; strings as
--          PostgreSQL escapes them, which is what RFC 8785 asks for; numbers as pgonce._canonical_number
-- raises   22003 a number is too large for a double
-- note     jsonb has no duplicate members: of two with one name the last was kept when it was parsed
create or replace function pgonce._canonical_json(p_value jsonb)
returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp
as $$
begin
    return case jsonb_typeof(p_value)
        when 'object' then '{' || coalesce((
            select string_agg(to_json(m.key)::text || ':' || pgonce._canonical_json(m.value), ','
                              order by pgonce._utf16_order(m.key) collate "C")
              from jsonb_each(p_value) m), '') || '}'
        when 'array' then '[' || coalesce((
            select string_agg(pgonce._canonical_json(e.value), ',' order by e.ordinality)
              from jsonb_array_elements(p_value) with ordinality e), '') || ']'
        when 'number' then pgonce._canonical_number(p_value::numeric)
        else p_value::text
    end;
end
$$;
