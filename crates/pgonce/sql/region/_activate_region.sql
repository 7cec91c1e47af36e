-- pgonce._activate_region(p_id, p_state): from now on the home of intents may be that region, or is not any more.
-- answers  a transaction id: attempts that began before it may still believe otherwise
-- writes   the state of the region: active, joining or lost
create or replace function pgonce._activate_region(p_id smallint, p_state text default 'active')
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update pgonce.region r set state = p_state, last_beat_at = case when p_state = 'active' then coalesce(r.last_beat_at, pgonce.now()) end
     where r.id = p_id;
    return pg_current_xact_id()::text;
end
$$;
