-- pgonce._set_clock(p_at): freezes pgonce.now() for every session. For tests, owner only.
-- writes   replaces the body of pgonce.now()
-- raises   22023 when p_at is null
create or replace function pgonce._set_clock(p_at timestamptz)
returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_at is null then
        raise exception 'pgonce._set_clock needs a time' using errcode = '22023',
            hint = 'To go back to the real clock call pgonce._reset_clock().';
    end if;
    execute format('create or replace function pgonce.now() returns timestamptz '
        'language sql volatile parallel safe return %L::timestamptz', p_at);
    return p_at;
end
$$;
revoke execute on function pgonce._set_clock(timestamptz) from public;
