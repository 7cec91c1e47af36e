-- pgonce._contract(p_tenant, p_scope): the contract in force for a scope, for what begins.
-- answers  as pgonce._contract_of
-- raises   P4000 in strict mode where the scope has no contract
create or replace function pgonce._contract(p_tenant text, p_scope text)
returns pgonce.scope
language sql stable
return pgonce._contract_of(p_tenant, p_scope, false);
