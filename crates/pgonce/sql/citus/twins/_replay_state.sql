-- pgonce._replay_state on Citus: there is none, so a cache of replays cannot be used.
-- raises   P4105, always
create or replace function pgonce._replay_state()
returns table (state text, now_ms bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'replays cannot be cached on Citus' using errcode = 'P4105',
        detail = 'No server knows which answers were removed on another.', hint = 'Build Once without a cache.';
end
$$;
