-- pgonce._scope_is_allowed(p_tenant, p_scope, p_key): may a claim without an answer go on in this scope, here?
-- answers  true; in strict mode whether the scope has a contract
-- raises   in a region, what pgonce._check_region raises; where tenants are isolated, what pgonce._check_tenant raises
-- note     inlined into pgonce.claim. pgonce._set_claim_switch swaps its body, so that only those who
--          ask for strictness, regions or isolation pay for a second look-up
create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text, p_key text)
returns boolean
language sql stable parallel safe
return true;
