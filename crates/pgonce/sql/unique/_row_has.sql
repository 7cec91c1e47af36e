-- pgonce._row_has(p_row, p_values, p_names): whether a row has these values under the names of an object.
create or replace function pgonce._row_has(p_row jsonb, p_values jsonb, p_names jsonb)
returns boolean
language sql immutable parallel safe set search_path = pg_catalog, pg_temp
return not exists (select from jsonb_object_keys(p_names) k where p_row -> k is distinct from p_values -> k);
