-- pgonce._build_event(p_projection, p_build, p_event): applies an event to a build, unless it is there already, or, where the
--          build is to be compared, the live projection does not have it, or it lacks the version that the gate needs.
-- answers  true: it was applied
-- writes   the build's gate, and what the projection's function writes
create or replace function pgonce._build_event(p_projection pgonce.projection, p_build pgonce.projection_build,
    p_event pgonce.projected)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    -- What carries no version never was applied: pgonce.project refuses it.
    if p_projection.gate = 'version' and p_event.version is null then
        return false;
    elsif p_build.purpose = 'verify' and not pgonce._projection_has(p_projection, p_event) then
        return false;
    end if;
    insert into pgonce.projection_build_gate as g (tenant, projection, purpose, name, version)
    values (p_event.tenant, p_build.projection, p_build.purpose,
        case p_projection.gate when 'version' then p_event.entity else p_event.message_id end,
        case p_projection.gate when 'version' then p_event.version else 0 end)
    on conflict on constraint one_gate_per_name do update set version = excluded.version
     where g.version < excluded.version;
    if not found then
        return false;
    end if;
    execute format('select %s($1, $2)', p_projection.apply) using p_build.fresh::regclass, p_event;
    return true;
end
$$;
