-- pgonce._due_timers on Citus: as transition/_due_timers.sql, for one tenant.
create or replace function pgonce._due_timers(p_limit integer, p_tenant text)
returns setof pgonce.transition_timer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz := pgonce.now();
    v_timer pgonce.transition_timer;
    v_count integer := 0;
begin
    for v_timer in
        select t.* from pgonce.transition_timer t where t.tenant = p_tenant and t.ended_at is null and t.due_at <= v_now
           -- Of an entity only the first: the others may end with it.
           and not exists (select 1 from pgonce.transition_timer o
                 where o.tenant = p_tenant and o.machine = t.machine and o.entity = t.entity and o.ended_at is null
                   and (o.due_at, o.kind) < (t.due_at, t.kind))
         order by t.due_at
    loop
        -- Counted here: those that are passed over leave their place to others.
        exit when v_count >= p_limit;
        -- The entity first, as every command does, and without waiting: so nobody deadlocks.
        continue when not pg_try_advisory_xact_lock(pgonce._lock_id(p_tenant, 'transition',
            jsonb_build_array(v_timer.machine, v_timer.entity)::text));
        perform 1 from pgonce.transition_timer t
          where t.tenant = p_tenant and t.machine = v_timer.machine and t.entity = v_timer.entity
            and t.kind = v_timer.kind and t.number = v_timer.number and t.ended_at is null for no key update;
        if found then
            v_count := v_count + 1;
            return next v_timer;
        end if;
    end loop;
end
$$;
