-- A schema with a twin of everything in pg_catalog that a statement could name: each operator and function with the
-- same arguments and, where they take any type, with our types as well; each type as a domain. Running one of them
-- raises HIJAK. The function that does it is reached by its schema: it is not what is tested.
create schema evil;
create function evil.caught(p_what text) returns void language plpgsql as $$
begin
    raise exception 'code of a stranger ran: %', p_what using errcode = 'HIJAK';
end $$;

do $$
declare
    -- What our own columns, parameters and expressions are made of.
    c_types constant text[] := array['bigint', 'integer', 'smallint', 'text', 'name', 'boolean', 'interval', 'timestamptz',
        'jsonb', 'bytea', 'uuid', 'numeric', 'double precision', 'oid', 'regclass', 'date', 'xid8', 'pg_snapshot', 'pg_lsn',
        'text[]', 'integer[]', 'bigint[]', 'bytea[]', 'smallint[]', 'pgonce.status', 'pgonce.inbox_status', '"char"'];
    c_operators constant text[] := array['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%', '||', '&', '|', '#', '<<',
        '>>', '~', '!~', '~~', '!~~', '->', '->>', '^@'];
    c_variadic constant text[] := array['format', 'concat', 'concat_ws', 'jsonb_build_object', 'jsonb_build_array'];
    v record;
    v_left text;
    v_right text;
    v_type text;
    v_name text;
    v_args text;
    v_made bigint := 0;
begin
    -- Functions, aggregates and window functions of pg_catalog, with the same arguments.
    for v in
        select p.proname, pg_get_function_identity_arguments(p.oid) as args, p.proretset,
               case when p.prorettype = 'record'::regtype and p.proretset then 'record'
                    else format_type(p.prorettype, null) end as result,
               exists (select from unnest(p.proargtypes::oid[]) t where t in ('internal'::regtype, 'cstring'::regtype)) as closed
          from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a', 'w')
           and p.prorettype not in ('internal'::regtype, 'cstring'::regtype, 'trigger'::regtype, 'event_trigger'::regtype)
    loop
        continue when v.closed;
        -- Names of results and defaults are no part of what decides a call.
        begin
            execute format('create function evil.%I(%s) returns %s%s language plpgsql as %L', v.proname, v.args,
                case when v.proretset then 'setof ' else '' end, v.result,
                format('begin perform evil.caught(%L); end', v.proname));
            v_made := v_made + 1;
        exception when others then null;
        end;
    end loop;
    if v_made < 1500 then
        raise exception 'only % twins of functions', v_made;
    end if;

    -- Functions that take any type, with our types.
    for v in
        select distinct p.proname, p.pronargs, p.proretset,
               pg_get_function_result(p.oid) as result, p.proargtypes::oid[]::regtype[] as args
          from pg_proc p where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a', 'w') and p.provariadic = 0
           and p.pronargs between 1 and 3
           and p.proargtypes::oid[]::regtype[]::text[] && array['anyelement', 'anyarray', '"any"', 'anynonarray', 'anyenum',
               'anycompatible', 'anycompatiblearray', 'anycompatiblenonarray']
    loop
        foreach v_type in array c_types loop
            begin
                select string_agg(case when a::text in ('anyarray', 'anycompatiblearray') then v_type || '[]'
                       when a::text ~ '^"?any' then v_type else a::text end, ', ' order by n) into v_args
                  from unnest(v.args) with ordinality as u (a, n);
                execute format('create function evil.%I(%s) returns %s language plpgsql as %L', v.proname, v_args,
                    regexp_replace(regexp_replace(v.result, 'any(compatible)?array', v_type || '[]'),
                        'any(compatible)?(element|nonarray|enum)?\M', v_type),
                    format('begin perform evil.caught(%L); end', v.proname));
            exception when others then null;
            end;
        end loop;
    end loop;
    foreach v_name in array c_variadic loop
        foreach v_left in array array['text', 'bigint', 'integer', 'name', 'jsonb', 'smallint', 'regclass', 'timestamptz'] loop
            foreach v_right in array array['text', 'bigint', 'integer', 'name', 'jsonb', 'smallint', 'regclass', 'timestamptz'] loop
                begin
                    execute format('create function evil.%I(%s, %s) returns %s language plpgsql as %L', v_name, v_left, v_right,
                        case when v_name ^@ 'jsonb' then 'jsonb' else 'text' end,
                        format('begin perform evil.caught(%L); end', v_name));
                exception when others then null;
                end;
            end loop;
        end loop;
    end loop;

    -- Operators: those of pg_catalog, and the ones we use for each two of our types.
    for v in
        select o.oprname as name, format_type(nullif(o.oprleft, 0), null) as l, format_type(o.oprright, null) as r,
               format_type(o.oprresult, null) as result
          from pg_operator o where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprresult <> 0
        union
        select n, l, r, case when n in ('=', '<>', '<', '>', '<=', '>=', '~', '!~', '~~', '!~~', '^@') then 'boolean'
                        when n in ('->') then 'jsonb' when n in ('->>') then 'text'
                        when l = r then l when n = '||' then 'text' else l end
          from unnest(c_operators) n, unnest(c_types) l, unnest(c_types) r
    loop
        v_name := 'op_' || md5(concat_ws(',', v.l, v.r, v.result));
        begin
            if to_regproc('evil.' || v_name) is null then
                execute format('create function evil.%I(%s) returns %s language plpgsql as %L', v_name,
                    concat_ws(', ', v.l, v.r), v.result, format('begin perform evil.caught(%L); end', 'an operator on ' || concat_ws(', ', v.l, v.r)));
            end if;
            execute format('create operator evil.%s (function = evil.%I%s, rightarg = %s)', v.name, v_name,
                coalesce(', leftarg = ' || v.l, ''), v.r);
        exception when others then null;
        end;
    end loop;

    -- Types, as domains that cannot hold anything.
    for v in
        select t.typname, format_type(t.oid, null) as base from pg_type t
         where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typname !~ '^_'
    loop
        begin
            execute format('create domain evil.%I as pg_catalog.%1$I check (evil.trap(%L))', v.typname, v.typname);
        exception when undefined_function then
            execute 'create function evil.trap(p_what pg_catalog.text) returns boolean language plpgsql immutable as '
                '''begin perform evil.caught(p_what); return true; end''';
            execute format('create domain evil.%I as pg_catalog.%1$I check (evil.trap(%L))', v.typname, v.typname);
        when others then null;
        end;
    end loop;
end $$;
grant usage on schema evil to public;
