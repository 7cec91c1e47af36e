-- pgonce._lock_tries(p_sweep, p_missed): how often the next round of housekeeping tries to get a lock that writers wait behind.
-- answers  1, and twice as often after each round that missed the lock, up to 16
-- writes   p_missed: whether this round did; null: nothing, it only asks
-- note     a try waits 15 ms at most, and so does everyone behind it. One long wait would get the lock more surely, and every
--          writer would wait as long
create or replace function pgonce._lock_tries(p_sweep text, p_missed boolean default null)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_rounds bigint := coalesce((select w.next_block from pgonce.sweep w where w.tenant = '' and w.name = p_sweep collate "C"), 0);
begin
    if p_missed or not p_missed and v_rounds > 0 then
        v_rounds := case when p_missed then least(v_rounds + 1, 4) else 0 end;
        insert into pgonce.sweep (name, next_block, swept_at) values (p_sweep, v_rounds, pgonce.now())
        on conflict (tenant, name) do update set next_block = excluded.next_block, swept_at = excluded.swept_at;
    end if;
    return 1 << least(v_rounds, 4)::integer;
end
$$;
