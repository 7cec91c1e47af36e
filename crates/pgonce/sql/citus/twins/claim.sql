-- pgonce.claim on Citus: as intent/claim.sql, delegated to the server that has the tenant's rows.
-- note     inlined SQL would read the empty table that the coordinator has under this name. The lock and the mark of the
--          attempt are on that server, so that every client sees them, on whatever server it is connected
create or replace function pgonce.claim(
    p_scope text, p_key text, p_fingerprint bytea, p_lease interval default null,
    p_owner text default null, p_tenant text default '', p_correlation text default null
)
returns table (outcome text, fence bigint, answer jsonb, ref_type text, ref_id text,
    failure_code text, failure_message text, retry_after interval, attempts integer)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query select c.outcome, c.fence, c.answer, c.ref_type, c.ref_id, c.failure_code, c.failure_message, c.retry_after, c.attempts
        from pgonce._claim_full(p_scope, p_key, p_fingerprint, p_lease, p_owner, p_tenant, p_correlation) c;
end
$$;
