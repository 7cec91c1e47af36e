-- pgonce._due_timers(p_limit): the timers that are due, each for one caller at a time.
-- answers  at most p_limit timers, the longest due first
-- locks    their entities, passing over those that somebody else moves
-- writes   nothing
-- raises   22023 p_limit is not positive
create or replace function pgonce._due_timers(p_limit integer)
returns setof pgonce.transition_timer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_timer pgonce.transition_timer;
begin
    if (p_limit > 0) is not true then
        raise exception 'fire_timers needs a positive limit' using errcode = '22023', hint = 'For example 100.';
    end if;
    for v_timer in
        select t.* from pgonce.transition_timer t where t.ended_at is null and t.due_at <= pgonce.now()
         order by t.due_at limit p_limit
    loop
        -- The entity first, as every command does, and without waiting: so nobody deadlocks.
        continue when not pg_try_advisory_xact_lock(pgonce._lock_id(v_timer.tenant, 'transition',
            jsonb_build_array(v_timer.machine, v_timer.entity)::text));
        perform from pgonce.transition_timer t
          where t.tenant = v_timer.tenant and t.machine = v_timer.machine and t.entity = v_timer.entity
            and t.kind = v_timer.kind and t.number = v_timer.number and t.ended_at is null for no key update;
        if found then
            return next v_timer;
        end if;
    end loop;
end
$$;
