-- pgonce._set_claim_switch(): gives pgonce._scope_is_allowed the body that the strict mode, the regions and the isolation of
--          tenants in this database need.
-- writes   that function
-- note     its body is the switch, so that only those who use them pay for them
create or replace function pgonce._set_claim_switch()
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    execute 'create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text, p_key text) '
        'returns boolean language sql stable parallel safe return '
        || case when exists (select from pgonce.scope s where s.tenant = '' and s.scope = '*') then 'true'
                else 'exists (select from pgonce.scope s where s.tenant in (p_tenant, '''') and s.scope = p_scope collate "C")' end
        || case when exists (select from pgonce.region r where r.is_self)
                then ' and pgonce._check_region(p_tenant, p_scope, p_key)' else '' end
        -- A claim that writes nothing yet holds the lock of its key.
        || case when exists (select from pg_catalog.pg_class c where c.oid = 'pgonce.intent'::regclass and c.relforcerowsecurity)
                then ' and pgonce._check_tenant(p_tenant)' else '' end;
end
$$;
