-- pgonce.succeed on Citus: as intent/succeed.sql, delegated.
create or replace function pgonce.succeed(
    p_scope text, p_key text, p_fingerprint bytea, p_fence bigint, p_answer jsonb default null,
    p_ref_type text default null, p_ref_id text default null, p_tenant text default '',
    p_correlation text default null, p_owner text default null, p_keep interval default null
)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._succeed_full(p_scope, p_key, p_fingerprint, p_fence, p_answer, p_ref_type, p_ref_id, p_tenant,
        p_correlation, p_owner, p_keep);
end
$$;
