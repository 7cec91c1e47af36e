-- pgonce._tenant_is_allowed(p_tenant): may this session see rows of this tenant?
-- answers  true; where tenants are isolated, whether its role is bound to this tenant or to none
-- note     inlined into the policies of the tables. pgonce.isolate_tenants swaps its body, so that only those who ask for
--          isolation pay for it
create or replace function pgonce._tenant_is_allowed(p_tenant text)
returns boolean
language sql stable parallel safe
return true;
