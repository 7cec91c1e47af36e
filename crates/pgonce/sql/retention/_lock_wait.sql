-- pgonce._lock_wait(p_sweep, p_missed): how long the next round of housekeeping waits for a lock.
-- answers  milliseconds: 15, and twice as long after each round that missed the lock, up to 960
-- writes   p_missed: whether this round did; null: nothing, it only asks
-- note     a short wait does not hold up writers, but whose transactions always overlap would never let it through
create or replace function pgonce._lock_wait(p_sweep text, p_missed boolean default null)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_rounds bigint := coalesce((select w.next_block from pgonce.sweep w where w.tenant = '' and w.name = p_sweep collate "C"), 0);
begin
    if p_missed or not p_missed and v_rounds > 0 then
        v_rounds := case when p_missed then least(v_rounds + 1, 6) else 0 end;
        insert into pgonce.sweep (name, next_block, swept_at) values (p_sweep, v_rounds, pgonce.now())
        on conflict (tenant, name) do update set next_block = excluded.next_block, swept_at = excluded.swept_at;
    end if;
    return 15 << v_rounds::integer;
end
$$;
