-- pgonce._success_row_with_retention(...): the finished row of an atomic success that is kept for p_keep, answer and all.
-- answers  one row for pgonce.intent
-- note     inlined; checks no limit. For an SDK that has lately asked pgonce._simple_retention, and an answer of at most
--          16 KiB: then the contract need not be looked up with every success, which would cost as much as the insert. All
--          others use pgonce._success_row.
create or replace function pgonce._success_row_with_retention(p_scope text, p_key text, p_fingerprint bytea, p_answer jsonb,
    p_ref_type text, p_ref_id text, p_tenant text, p_correlation text, p_owner text, p_keep interval)
returns setof pgonce.intent
language sql stable
begin atomic
    select 1::bigint, pgonce.now(), pgonce.now() + p_keep, 1, 'succeeded'::pgonce.status, p_tenant, p_scope, p_key,
           p_fingerprint, p_answer, p_ref_type, p_ref_id, p_correlation, p_owner, null::timestamptz,
           null::timestamptz, null::text, null::text, null::timestamptz, null::timestamptz;
end;
