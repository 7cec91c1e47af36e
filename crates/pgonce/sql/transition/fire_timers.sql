-- pgonce.fire_timers(p_limit): lets due timers move their entities, each once.
-- answers  a row for each timer that fired, with the outcome of its transition
-- locks    the entities of the timers, passing over those that somebody else moves
-- writes   what pgonce.transition writes, and the end of the timers
-- raises   22023 p_limit is not positive
-- note     call it as often as lateness hurts; many may call it at the same time. The command of a timer is named
--          by its number, so a crash repeats nothing
-- example  select * from pgonce.fire_timers();
create or replace function pgonce.fire_timers(p_limit integer default 100)
returns table (tenant text, machine text, entity text, kind text, outcome text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
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
        continue when not found;
        tenant := v_timer.tenant;
        machine := v_timer.machine;
        entity := v_timer.entity;
        kind := v_timer.kind;
        select x.outcome into outcome
          from pgonce.transition(v_timer.machine, v_timer.entity, v_timer.to_state, 'timer ' || v_timer.number::text,
            p_tenant => v_timer.tenant) x;
        update pgonce.transition_timer t set ended_at = pgonce.now(), outcome = fire_timers.outcome
         where t.tenant = v_timer.tenant and t.machine = v_timer.machine and t.entity = v_timer.entity
           and t.kind = v_timer.kind and t.number = v_timer.number;
        return next;
    end loop;
end
$$;
