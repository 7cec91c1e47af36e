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
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if (pgonce._message_fits(p_projection, p_entity, 'any', p_tenant) and p_version is not null) is not true then
        perform pgonce._raise_bad_version(p_projection, p_entity, p_version);
    end if;
    perform pgonce._force_durable_commit();
    insert into pgonce.projection_gate as g (tenant, projection, entity, version)
    values (p_tenant, p_projection, p_entity, p_version)
    on conflict on constraint one_gate_per_entity do update set version = excluded.version
     where g.version operator(pg_catalog.<) excluded.version;
    return found;
end
$$;
