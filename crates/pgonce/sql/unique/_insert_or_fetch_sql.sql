-- pgonce._insert_or_fetch_sql(p_index, p_row): the statements of pgonce.insert_or_fetch and pgonce.update_once, in
--          which every name and operator has its schema.
-- answers  texts, each with the row as its parameter: one that inserts, one that fetches by the key that was
--          passed, one that runs into the conflict and leaves the row in the way in a setting, one that updates
--          the columns beside the key, these columns as an object of nulls, and one that reads the row's values
-- raises   22023 p_index is not a unique index that is checked at once, or p_row has an unknown column
create or replace function pgonce._insert_or_fetch_sql(p_index regclass, p_row jsonb)
returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_index     pg_index;
    v_table     text;
    v_predicate text;
    v_keys      text;
    v_match     text;
    v_columns   text;
    v_unknown   text;
    v_any       text;
    v_row       text;
    v_set       text;
    v_names     jsonb;
begin
    select i.* into v_index from pg_index i where i.indexrelid = p_index and i.indisunique;
    if not found then
        raise exception '% is not a unique index', coalesce(p_index::text, 'null') using errcode = '22023',
            hint = 'Name the unique index or constraint that says what may exist only once.';
    elsif not v_index.indimmediate then
        raise exception '% is deferrable: two rows may pass it until the commit', p_index using errcode = '22023',
            hint = 'Name a unique index or constraint that is not deferrable.';
    end if;
    v_table := v_index.indrelid::regclass::text;
    v_predicate := pg_get_expr(v_index.indpred, v_index.indrelid);
    -- Each key is compared as the index compares it.
    select string_agg(k.expression, ', ' order by k.n),
           string_agg(format('(%s)%4$s operator(%2$I.%3$s) (select (%1$s)%4$s from x)', k.expression, n.nspname, o.oprname,
                   (select format(' collate %I.%I', cn.nspname, l.collname) from pg_collation l
                      join pg_namespace cn on cn.oid = l.collnamespace where l.oid = k.collation))
               || case when coalesce((to_jsonb(v_index) ->> 'indnullsnotdistinct')::boolean, false)
                  then format(' is not false and ((%1$s) is null) operator(pg_catalog.=) (select (%1$s) is null from x)', k.expression)
                  else '' end, ' and ' order by k.n)
      into v_keys, v_match
      from (select g.n, pg_get_indexdef(v_index.indexrelid, g.n, false) as expression, v_index.indclass[g.n - 1] as class,
                   v_index.indcollation[g.n - 1] as collation
              from generate_series(1, v_index.indnkeyatts) as g (n)) k
      join pg_opclass c on c.oid = k.class
      join pg_amop a on a.amopfamily = c.opcfamily and a.amopstrategy = 3
       and a.amoplefttype = c.opcintype and a.amoprighttype = c.opcintype
      join pg_operator o on o.oid = a.amopopr
      join pg_namespace n on n.oid = o.oprnamespace;
    select string_agg(format('%I', k), ', ') filter (where a.attnum is not null),
           string_agg(format('%I', k), ', ') filter (where a.attnum is null)
      into v_columns, v_unknown
      from jsonb_object_keys(p_row) k
      left join pg_attribute a
        on a.attrelid = v_index.indrelid and a.attname = k and a.attnum > 0 and not a.attisdropped;
    if v_unknown is not null or v_columns is null then
        raise exception 'the row does not fit table %: %', v_table,
            coalesce('it has no column ' || v_unknown, 'the row is empty')
            using errcode = '22023', hint = 'Pass a JSON object of column names and values.';
    end if;
    -- A column that an update could write, though none ever does.
    select format('%I', a.attname) into v_any from pg_attribute a
     where a.attrelid = v_index.indrelid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
       and a.attidentity <> 'a'
     order by a.attnum limit 1;
    select string_agg(format('%I = (select x.%1$I from x)', a.attname), ', '), jsonb_object_agg(a.attname, null)
      into v_set, v_names
      from jsonb_object_keys(p_row) k
      join pg_attribute a on a.attrelid = v_index.indrelid and a.attname = k and a.attnum > 0
     where a.attnum <> all ((v_index.indkey::smallint[])[0:v_index.indnkeyatts - 1]);
    v_row := format('pg_catalog.jsonb_populate_record(null::%s, $1)', v_table);
    return array[
        format('insert into %s as t (%s) select %2$s from %s on conflict (%s)%s do nothing returning pg_catalog.to_jsonb(t.*)',
            v_table, v_columns, v_row, v_keys, coalesce(' where ' || v_predicate, '')),
        format('with x as (select * from %s) select pg_catalog.to_jsonb(t.*) from %s t where %s%s',
            v_row, v_table, v_match, coalesce(' and ' || v_predicate, '')),
        case when v_any is not null then
            format('insert into %s as t (%s) select %2$s from %s on conflict (%s)%s do update set %6$s = t.%6$s '
                'where pgonce._note_existing(pg_catalog.to_jsonb(t.*)) returning pg_catalog.to_jsonb(t.*)',
                v_table, v_columns, v_row, v_keys, coalesce(' where ' || v_predicate, ''), v_any) end,
        case when v_set is not null then format('with x as (select * from %s) update %s t set %s where %s%s returning pg_catalog.to_jsonb(t.*)',
            v_row, v_table, v_set, v_match, coalesce(' and ' || v_predicate, '')) end,
        v_names::text,
        format('select pg_catalog.to_jsonb(x.*) from %s x', v_row)];
end
$$;
