-- pgonce._reset_clock(): gives pgonce.now() the real clock back. For tests, owner only.
-- writes   replaces the body of pgonce.now()
create or replace function pgonce._reset_clock()
returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    execute 'create or replace function pgonce.now() returns timestamptz '
        'language sql volatile parallel safe return clock_timestamp()';
    return pgonce.now();
end
$$;
revoke execute on function pgonce._reset_clock() from public;
