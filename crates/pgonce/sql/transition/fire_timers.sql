-- pgonce.fire_timers(p_limit): lets due timers move their entities, each once.
-- answers  a row for each timer that fired, with the outcome of its transition; failed: its guard or its event raised an
--          error, or waited too long for a lock, which is a warning here, and it fires again in a minute. Where the statement is
--          cancelled meanwhile (statement_timeout, a client that does not wait any longer) so does the timer at which that was, and the
--          call ends there: what fired before it stays, and the rest is left to the next call
-- locks    the entities of the timers, passing over those that somebody else moves
-- writes   what pgonce.transition writes, and the end of the timers
-- raises   22023 p_limit is not positive
-- note     call it as often as lateness hurts; many may call it at the same time. Of an entity with several due timers the
--          first fires, and at the next call the next one, unless it ended with the first. The command of a timer is named
--          by its number, so a crash repeats nothing
-- example  select * from pgonce.fire_timers();
create or replace function pgonce.fire_timers(p_limit integer default 100)
returns table (tenant text, machine text, entity text, kind text, outcome text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_timer record;
    v_wait  text := current_setting('lock_timeout');
    v_ends  boolean := false;
begin
    -- One bad guard must not hold back the timers of others: also not one that waits for what somebody keeps locked.
    if v_wait = '0' then
        perform set_config('lock_timeout', '5s', true);
    end if;
    for v_timer in select * from pgonce._due_timers(p_limit) loop
        tenant := v_timer.tenant;
        machine := v_timer.machine;
        entity := v_timer.entity;
        kind := v_timer.kind;
        begin
            select x.outcome into outcome
              from pgonce.transition(v_timer.machine, v_timer.entity, v_timer.to_state, 'timer ' || v_timer.number::text,
                p_tenant => v_timer.tenant) x;
        exception
            when deadlock_detected then raise;
            -- The last two are not among the others: a guard that asserts, and one that takes too long.
            when others or assert_failure or query_canceled then
                if sqlstate = '40001' and current_setting('transaction_isolation') <> 'read committed' then
                    raise;  -- the whole transaction is too old
                elsif sqlstate = '55P03' and current_setting('lock_timeout')::interval > interval '100 ms' then
                    -- Once is enough: others get the time of an ordinary wait.
                    perform set_config('lock_timeout', '100ms', true);
                end if;
                raise warning 'timer % of machine "%" failed: % (%)', v_timer.number, v_timer.machine, sqlerrm, sqlstate;
                perform pgonce._postpone_timer(v_timer.tenant, v_timer.machine, v_timer.entity, v_timer.kind, v_timer.number);
                outcome := 'failed';
                v_ends := sqlstate = '57014';
        end;
        return next;
        exit when v_ends;
    end loop;
    perform set_config('lock_timeout', v_wait, true);
end
$$;
