-- pgonce._projection_has(p_projection, p_event): whether the live projection has applied this event, or a later
--          version of its entity.
create or replace function pgonce._projection_has(p_projection pgonce.projection, p_event pgonce.projected)
returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if p_projection.gate = 'version' then
        return exists (select from pgonce.projection_gate g
            where g.tenant = p_event.tenant and g.projection = p_projection.projection
              and g.entity = p_event.entity and g.version >= p_event.version);
    end if;
    return exists (select from pgonce.inbox_marker m
        where m.tenant = p_event.tenant and m.message_id = p_event.message_id
          and m.consumer = 'projection:' || p_projection.projection and m.source = 'event'
          and m.day = pgonce._day_of(p_event.message_id));
end
$$;
