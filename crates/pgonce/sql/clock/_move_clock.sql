-- pgonce._move_clock(p_by): shifts pgonce.now() for every session; it goes on running, or stays
--          frozen where pgonce._set_clock froze it. For tests, owner only.
-- writes   replaces the body of pgonce.now()
-- raises   22023 when p_by is null
create or replace function pgonce._move_clock(p_by interval)
returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    -- By its body: two readings of a running clock are often the same microsecond.
    v_frozen boolean := pg_get_functiondef('pgonce.now()'::regprocedure) not like '%clock_timestamp%';
    v_ahead  interval := pgonce.now() - clock_timestamp() + p_by;
begin
    if p_by is null then
        raise exception 'pgonce._move_clock needs an interval' using errcode = '22023',
            hint = 'For example: select pgonce._move_clock(interval ''1 hour'').';
    end if;
    if v_frozen then
        return pgonce._set_clock(pgonce.now() + p_by);
    end if;
    execute format('create or replace function pgonce.now() returns timestamptz '
        'language sql volatile parallel safe return clock_timestamp() + %L::interval', v_ahead);
    return pgonce.now();
end
$$;
revoke execute on function pgonce._move_clock(interval) from public;
