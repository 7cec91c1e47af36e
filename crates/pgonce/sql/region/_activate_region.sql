-- pgonce._activate_region(p_id, p_state): from now on the home of intents may be that region, or is not any more.
-- writes   the state of the region: active, joining, leaving or lost. What it has sent so far is here
-- note     the row of this region is written too: pgonce._check_region finds by it what changed after a snapshot
create or replace function pgonce._activate_region(p_id smallint, p_state text default 'active')
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
begin
    update pgonce.region r set state = p_state, missed = false,
           last_beat_at = case when p_state = 'active' then coalesce(r.last_beat_at, pgonce.now()) end
     where r.id = p_id;
    update pgonce.region r set joined_at = r.joined_at where r.is_self and r.id <> p_id;
end
$$;
