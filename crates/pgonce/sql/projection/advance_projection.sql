-- pgonce.advance_projection(p_projection, p_entity, p_version, p_tenant): decides whether a projection
--          applies this version of an entity, or this position of a stream, now. Call it in the transaction
--          that applies it, or as a gate in its statement.
-- answers  true: it moves the entity forward, apply it; false: this version or a later one is applied already
-- locks    the entity's gate until the end of the transaction: versions of one entity are applied one by one
-- writes   its version
-- raises   22023 a name or a version that is missing
-- example  select pgonce.advance_projection('profile', 'user-7', 3);
create or replace function pgonce.advance_projection(p_projection text, p_entity text, p_version bigint,
    p_tenant text default '')
returns boolean
language plpgsql volatile
as $$
begin
    if (octet_length(p_projection) between 1 and 255 and octet_length(p_entity) between 1 and 255
        and octet_length(p_tenant) <= 255 and p_version is not null) is not true then
        raise exception 'a projection moves forward by its name, an entity of 1 to 255 bytes and a version' using errcode = '22023',
            detail = format('Projection %s, entity %s, version %s.', quote_nullable(p_projection), quote_nullable(p_entity),
                coalesce(p_version::text, 'null')),
            hint = 'For example: pgonce.advance_projection(''profile'', ''user-7'', 3).';
    end if;
    perform pgonce._force_durable_commit();
    insert into pgonce.projection_gate as g (tenant, projection, entity, version)
    values (p_tenant, p_projection, p_entity, p_version)
    on conflict on constraint one_gate_per_entity do update set version = excluded.version
     where g.version < excluded.version;
    return found;
end
$$;
