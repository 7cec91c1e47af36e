-- pgonce.fire_timers on Citus: as transition/fire_timers.sql, tenant by tenant, each on the server that has its entities.
-- note     it finds tenants by reading every shard
create or replace function pgonce.fire_timers(p_limit integer default 100)
returns table (tenant text, machine text, entity text, kind text, outcome text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := pgonce.now();
    v_tenant text;
    v_left   integer := p_limit;
    v_ends   boolean := false;
begin
    if (p_limit > 0) is not true then
        raise exception 'fire_timers needs a positive limit' using errcode = '22023', hint = 'For example 100.';
    end if;
    for v_tenant in
        select d.tenant from (select t.tenant, min(t.due_at) as due_at from pgonce.transition_timer t
             where t.ended_at is null and t.due_at <= v_now group by t.tenant) d order by d.due_at
    loop
        for tenant, machine, entity, kind, outcome in
            select f.tenant, f.machine, f.entity, f.kind, f.outcome from pgonce._fire_tenant_timers(v_left, v_tenant) f
        loop
            -- Its limit of time is used up: what came next would have none.
            v_ends := v_ends or outcome = 'cancelled';
            outcome := case when outcome = 'cancelled' then 'failed' else outcome end;
            return next;
            v_left := v_left - 1;
        end loop;
        exit when v_ends or v_left <= 0;
    end loop;
end
$$;
