-- pgonce._probe_name(p_probe): the name of a contract's probe, where the function may be one.
-- answers  schema and name, quoted where needed; null for null
-- raises   22023 there is no such function, or calling it could do more than its owner may
-- note     one role defines scopes and names a function, another runs recovery and calls it. So the function must be security
--          definer: it has its owner's rights and no others, and no superuser owns it. It is called in a read-only transaction
--          that is rolled back, so nothing that it leaves to the commit runs. Recovery asks again in the statement of each call
create or replace function pgonce._probe_name(p_probe text)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_parts text[];
    v_name  text;
begin
    if p_probe is null then
        return null;
    end if;
    begin
        v_parts := parse_ident(p_probe);
    exception when invalid_parameter_value then
        v_parts := null;
    end;
    select format('%I.%I', n.nspname, f.proname) into v_name
      from pg_catalog.pg_proc f
      join pg_catalog.pg_namespace n on n.oid = f.pronamespace
     where cardinality(v_parts) = 2 and n.nspname = v_parts[1] collate "C" and f.proname = v_parts[2] collate "C"
       and oidvectortypes(f.proargtypes) = 'text, text, text' collate "C"
       and f.prokind = 'f' and f.prosecdef
       and not exists (select from pg_catalog.pg_roles r where r.oid = f.proowner and r.rolsuper)
       and pg_get_function_result(f.oid) = 'TABLE(answer jsonb, ref_type text, ref_id text)' collate "C"
       and exists (select from unnest(f.proconfig) c where c collate "C" like 'search_path=%');
    if v_name is null then
        raise exception '% is no function that can be a probe', quote_literal(p_probe) using errcode = '22023',
            detail = 'A probe is named with its schema, takes (text, text, text): scope, key and tenant, returns '
                'table (answer jsonb, ref_type text, ref_id text), is security definer, sets its search_path, and belongs to no superuser.',
            hint = 'For example: create function shop.find_order(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, '
                'ref_type text, ref_id text) language sql stable security definer set search_path = pg_catalog, pg_temp as ...';
    end if;
    return v_name;
end
$$;
