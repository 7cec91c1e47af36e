-- pgonce._due_timers(p_limit): the timers that are due, each for one caller at a time.
-- answers  at most p_limit timers, the longest due first, and of an entity one
-- locks    their entities, passing over those that somebody else moves
-- writes   nothing
-- raises   22023 p_limit is not positive
create or replace function pgonce._due_timers(p_limit integer)
returns setof pgonce.transition_timer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: by the index, and no further than asked.
    set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    v_now   timestamptz := pgonce.now();
    v_timer pgonce.transition_timer;
    v_count integer := 0;
begin
    if (p_limit > 0) is not true then
        raise exception 'fire_timers needs a positive limit' using errcode = '22023', hint = 'For example 100.';
    end if;
    for v_timer in
        select t.* from pgonce.transition_timer t where t.ended_at is null and t.due_at <= v_now
           -- Of an entity only the first: the others may end with it.
           and not exists (select 1 from pgonce.transition_timer o
                 where o.tenant = t.tenant and o.machine = t.machine and o.entity = t.entity and o.ended_at is null
                   and (o.due_at, o.kind) < (t.due_at, t.kind))
         order by t.due_at
    loop
        -- Counted here: those that are passed over leave their place to others.
        exit when v_count >= p_limit;
        -- The entity first, as every command does, and without waiting: so nobody deadlocks.
        continue when not pg_try_advisory_xact_lock(pgonce._lock_id(v_timer.tenant, 'transition',
            jsonb_build_array(v_timer.machine, v_timer.entity)::text));
        perform from pgonce.transition_timer t
          where t.tenant = v_timer.tenant and t.machine = v_timer.machine and t.entity = v_timer.entity
            and t.kind = v_timer.kind and t.number = v_timer.number and t.ended_at is null for no key update;
        if found then
            v_count := v_count + 1;
            return next v_timer;
        end if;
    end loop;
end
$$;
