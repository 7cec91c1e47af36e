-- pgonce._apply_region_rule(p_scope, p_tenant): puts the rule of a scope that is pending in force. pgonce region rule calls it, once
--          all regions have the rule and what was under way before it has ended and arrived everywhere.
-- answers  nothing
-- writes   pgonce.region_rule
create or replace function pgonce._apply_region_rule(p_scope text, p_tenant text)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgonce.region_rule r
     where r.tenant = p_tenant collate "C" and r.scope = p_scope collate "C" and not r.pending
       and exists (select from pgonce.region_rule n where n.tenant = r.tenant and n.scope = r.scope and n.pending);
    update pgonce.region_rule r set pending = false
     where r.tenant = p_tenant collate "C" and r.scope = p_scope collate "C" and r.pending;
end
$$;
