-- pgonce._ledger_digest(p_group): the hash over all that a group says.
create or replace function pgonce._ledger_digest(p_tenant text, p_source text, p_operation text, p_pending boolean,
    p_accounts text[], p_amounts numeric[], p_memo jsonb, p_reverses_source text, p_reverses_operation text)
returns bytea
language sql stable parallel safe
return sha256(convert_to(jsonb_build_array(p_tenant, p_source, p_operation, p_pending, p_accounts, p_amounts, p_memo,
    p_reverses_source, p_reverses_operation)::text, 'UTF8'));
