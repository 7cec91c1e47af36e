-- pgonce._fire_tenant_timers(p_limit, p_tenant): on Citus, what pgonce.fire_timers does for one tenant, on the server that has its
--          entities.
-- answers  as pgonce.fire_timers; the outcome of the one that was cancelled is cancelled
-- locks    as pgonce.fire_timers
create or replace function pgonce._fire_tenant_timers(p_limit integer, p_tenant text)
returns table (tenant text, machine text, entity text, kind text, outcome text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_timer   record;
    v_outcome text;
    v_ends    boolean := false;
begin
    for v_timer in select * from pgonce._due_timers(p_limit, p_tenant) loop
        -- One bad guard must not hold back the timers of others.
        begin
            select x.outcome into v_outcome
              from pgonce.transition(v_timer.machine, v_timer.entity, v_timer.to_state, 'timer ' || v_timer.number::text,
                p_tenant => p_tenant) x;
        exception
            when deadlock_detected then raise;
            -- The last two are not among the others: a guard that asserts, and one that takes too long.
            when others or assert_failure or query_canceled then
                if sqlstate = '40001' and current_setting('transaction_isolation') <> 'read committed' then
                    raise;  -- the whole transaction is too old
                end if;
                raise warning 'timer % of machine "%" failed: % (%)', v_timer.number, v_timer.machine, sqlerrm, sqlstate;
                perform pgonce._postpone_timer(p_tenant, v_timer.machine, v_timer.entity, v_timer.kind, v_timer.number);
                v_ends := sqlstate = '57014';
                v_outcome := case when v_ends then 'cancelled' else 'failed' end;
        end;
        return query select p_tenant, v_timer.machine::text, v_timer.entity::text, v_timer.kind::text, v_outcome;
        exit when v_ends;
    end loop;
end
$$;
