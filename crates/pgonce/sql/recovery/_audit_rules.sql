-- pgonce._audit_rules(p_part, p_before, p_after, p_act, p_tenant): records that an operator defined or changed rules.
-- writes   a row of pgonce.operator_act, with the rules as they were; nothing where they are as before: services define theirs at every
--          start. On Citus nothing: acts are not recorded there
create or replace function pgonce._audit_rules(p_part text, p_before jsonb, p_after jsonb, p_act text default null, p_tenant text default '')
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_before - 'defined_at' is distinct from p_after - 'defined_at' and to_regclass('pgonce.tenant_epoch') is null then
        perform pgonce._audit_act(coalesce(p_act, case when p_before is null then 'define' else 'change' end), p_part, null, null,
            coalesce(p_before, '{}'), p_tenant);
    end if;
end
$$;
