-- pgonce._scope_is_allowed(p_tenant, p_scope): may a claim go on in this scope?
-- answers  true; in strict mode whether the scope has a contract
-- note     inlined into pgonce.claim. pgonce.set_strict swaps its body, so that only those who
--          ask for strictness pay for a second look-up
create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text)
returns boolean
language sql stable parallel safe
return true;
