-- pgonce._import_target(p_name, p_table, p_columns, p_key): what a table is to an import: the type of each column, and
--          the natural key.
-- answers  a row per column of the file: its type; for a column of the key the operator that compares it
-- raises   P4095 the table has no such column, or computes it; P4096 there is no such table; P4097 no unique index
--          over columns of the file
-- note     the key, where none is named, is the primary key, else the oldest unique index. Types of PostgreSQL have their
--          schema: they are read on the caller's path, where another of the name may come first. (Those with a length or
--          a precision are words of the grammar, and format_type names what is in any other schema with it.)
create or replace function pgonce._import_target(p_name text, p_table regclass, p_columns text[], p_key text[])
returns table (name text, type text, equals text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_found  text[];
    v_index  pg_index;
    v_wrong  text;
begin
    if not exists (select from pg_class c where c.oid = p_table and c.relkind in ('r', 'p')) then
        raise exception 'there is no table "%"', p_name using errcode = 'P4096', hint = 'Name an existing table, with its schema.';
    end if;
    select array_agg(a.attname::text order by a.attnum) into v_found from pg_attribute a
     where a.attrelid = p_table and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a';
    select u.name into v_wrong from unnest(p_columns || coalesce(p_key, '{}')) u (name)
     where u.name collate "C" <> all (v_found) or u.name collate "C" <> all (p_columns) limit 1;
    if found then
        raise exception 'there is no column "%" to import into "%"', v_wrong, p_table using errcode = 'P4095',
            detail = 'The table takes: ' || array_to_string(v_found, ', ') || '. The file has: '
                || array_to_string(p_columns, ', ') || '.',
            hint = 'Rename or leave out columns of the file: --map FROM=TO, --map FROM=.';
    end if;
    -- A key that is checked late, for some rows only, or over expressions cannot decide which rows are new.
    select i.* into v_index from pg_index i
      cross join lateral (select array_agg(a.attname::text) as names from pg_attribute a
             where a.attrelid = p_table and a.attnum = any ((i.indkey::smallint[])[0:i.indnkeyatts - 1])) k
     where i.indrelid = p_table and i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null and i.indexprs is null
       and case when p_key is null then k.names <@ p_columns else k.names @> p_key and k.names <@ p_key end
     order by i.indisprimary desc, i.indexrelid limit 1;
    if not found then
        raise exception 'no unique key of "%" is made of %', p_table,
            case when p_key is null then 'columns of the file' else array_to_string(p_key, ', ') end using errcode = 'P4097',
            hint = 'Create a unique index that is not deferrable, partial or over expressions; name its columns with --key.';
    end if;
    return query
        select u.name, case when y.typnamespace = 'pg_catalog'::regnamespace and a.atttypmod < 0 then 'pg_catalog.' || quote_ident(y.typname)
                            else format_type(a.atttypid, a.atttypmod) end || coalesce(' collate ' || quote_ident(cn.nspname) || '.'
                   || quote_ident(c.collname), ''),
               'operator(' || quote_ident(n.nspname) || '.' || o.oprname || ')'
                   || case when t.typtype = 'p' then ''
                           when t.typnamespace = 'pg_catalog'::regnamespace then '::pg_catalog.' || quote_ident(t.typname)
                           else '::' || format_type(t.oid, null) end
          from unnest(p_columns) u (name)
          join pg_attribute a on a.attrelid = p_table and a.attname = u.name
          join pg_type y on y.oid = a.atttypid
          left join pg_collation c on c.oid = a.attcollation
          left join pg_namespace cn on cn.oid = c.collnamespace
          left join lateral (select k.at from unnest(v_index.indkey::smallint[]) with ordinality k (attnum, at)
                 where k.attnum = a.attnum and k.at <= v_index.indnkeyatts) k on true
          left join pg_opclass p on p.oid = (v_index.indclass::oid[])[k.at - 1]
          left join pg_amop m on m.amopfamily = p.opcfamily and m.amoplefttype = p.opcintype and m.amoprighttype = p.opcintype
                and m.amopstrategy = 3
          left join pg_operator o on o.oid = m.amopopr
          left join pg_namespace n on n.oid = o.oprnamespace
          left join pg_type t on t.oid = p.opcintype;
end
$$;
