-- pgonce._projection_match(p_table, p_left, p_right): a condition under which two rows of a table have the same primary
--          key, for a statement that calls them p_left and p_right.
-- note     with the equality of the key's own index, whatever the search path has under that name
create or replace function pgonce._projection_match(p_table regclass, p_left text, p_right text)
returns text
language sql stable
begin atomic
    select string_agg(format('%1$I.%2$I operator(%3$I.%4$s) %5$I.%2$I', p_left, a.attname, n.nspname, o.oprname, p_right),
               ' and ' order by k.place)
      from pg_catalog.pg_index i
     cross join lateral unnest(i.indkey::int2[], i.indclass::oid[]) with ordinality as k (attnum, opclass, place)
      join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
      join pg_catalog.pg_opclass c on c.oid = k.opclass
      join pg_catalog.pg_amop p on p.amopfamily = c.opcfamily and p.amoplefttype = c.opcintype
       and p.amoprighttype = c.opcintype and p.amopstrategy = 3
      join pg_catalog.pg_operator o on o.oid = p.amopopr
      join pg_catalog.pg_namespace n on n.oid = o.oprnamespace
     where i.indrelid = p_table and i.indisprimary;
end;
