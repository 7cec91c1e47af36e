-- pgonce._projection_columns(p_table, p_key): the columns of a table that can be written, or those of its primary
--          key, as a list for a statement.
create or replace function pgonce._projection_columns(p_table regclass, p_key boolean)
returns text
language sql stable
begin atomic
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_catalog.pg_attribute a
     where a.attrelid = p_table and a.attnum > 0 and not a.attisdropped
       and case when p_key then exists (select from pg_catalog.pg_index i
                    where i.indrelid = p_table and i.indisprimary and a.attnum = any (i.indkey))
                else a.attgenerated = '' end;
end;
