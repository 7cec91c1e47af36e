-- pgonce._replay_of on Citus: see pgonce._replay_state there.
-- raises   P4105, always
create or replace function pgonce._replay_of(p_scope text, p_key text, p_fingerprint bytea, p_tenant text)
returns table (answer jsonb, ref_type text, ref_id text, attempts integer, fence bigint, left_ms bigint, state text, now_ms bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._replay_state();
end
$$;
