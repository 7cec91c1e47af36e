-- pgonce._projection_columns(p_table, p_prefix): the columns of a table that can be written, as a list for a statement,
--          each after p_prefix.
create or replace function pgonce._projection_columns(p_table regclass, p_prefix text default '')
returns text
language sql stable
begin atomic
    select string_agg(p_prefix || quote_ident(a.attname), ', ' order by a.attnum) from pg_catalog.pg_attribute a
     where a.attrelid = p_table and a.attnum > 0 and not a.attisdropped and a.attgenerated = '';
end;
