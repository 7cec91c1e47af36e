-- pgonce.resource_id(p_namespace, p_parts): an id from the natural name of a thing: the same parts give the same id, so
--          that a second insert meets the primary key.
-- answers  a UUID of version 5, the same that pgonce::key::resource_id and the other clients make
-- locks    nothing
-- writes   nothing
-- raises   22004 the namespace or a part is null
-- note     who knows the parts can compute the id: it is no secret. A thing that is renamed keeps the id of its first
--          name. SHA-1 in PL/pgSQL takes a part of a millisecond: where ids are made often, make them in the client
-- example  select pgonce.resource_id('order', 'shop-7', '2026-000123');
create or replace function pgonce.resource_id(p_namespace text, variadic p_parts text[])
returns uuid
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
declare
    -- The namespace of URLs, by RFC 9562.
    v_space bytea := '\x6ba7b8119dad11d180b400c04fd430c8';
    v_hash  bytea;
    v_name  bytea := '';
begin
    if p_namespace is null or p_parts is null or array_position(p_parts, null) is not null then
        raise exception 'an id is made of a namespace and parts that are not null' using errcode = '22004',
            hint = 'Name what makes the thing what it is.';
    end if;
    for v_at in 1 .. cardinality(p_parts) loop
        v_name := v_name || int8send(octet_length(convert_to(p_parts[v_at], 'UTF8'))::bigint) || convert_to(p_parts[v_at], 'UTF8');
    end loop;
    for v_step in 1 .. 2 loop
        v_hash := substr(pgonce._sha1(v_space || case v_step when 1 then convert_to('urn:pgonce:' || p_namespace, 'UTF8')
            else v_name end), 1, 16);
        v_hash := set_byte(set_byte(v_hash, 6, get_byte(v_hash, 6) & 15 | 80), 8, get_byte(v_hash, 8) & 63 | 128);
        v_space := v_hash;
    end loop;
    return encode(v_hash, 'hex')::uuid;
end
$$;
