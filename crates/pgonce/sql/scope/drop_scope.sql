-- pgonce.drop_scope(p_scope, p_tenant): removes the contract of a scope; its intents keep their records.
-- answers  true: there was one
-- locks    the contract's row
-- writes   deletes one row of pgonce.scope; one of pgonce.operator_act
-- raises   22023 the scope is "*", which only pgonce.set_strict removes, or the tenant is null
-- example  select pgonce.drop_scope('orders.create');
create or replace function pgonce.drop_scope(p_scope text, p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgonce.scope;
begin
    if p_tenant is null then
        raise exception 'the tenant is null' using errcode = '22023',
            hint = 'Leave it out, or pass the empty text, for the contract of all tenants.';
    elsif p_scope collate "C" in ('*', '*off') and p_tenant collate "C" = '' then
        raise exception 'the contract of scope ''*'' cannot be dropped by itself' using errcode = '22023',
            hint = 'To refuse scopes without a contract: select pgonce.set_strict(true), or `pgonce strict on`.';
    end if;
    delete from pgonce.scope s where s.tenant = p_tenant collate "C" and s.scope = p_scope collate "C" returning s.* into v_before;
    if not found then
        return false;
    end if;
    perform pgonce._audit_rules('scope ' || p_scope, to_jsonb(v_before), null, 'drop', p_tenant);
    return true;
end
$$;
