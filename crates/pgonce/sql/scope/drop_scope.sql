-- pgonce.drop_scope(p_scope, p_tenant): removes the contract of a scope; its intents keep their records.
-- answers  true: there was one
-- locks    the contract's row
-- writes   deletes one row of pgonce.scope
-- raises   22023 the scope is "*", which only pgonce.set_strict removes, or the tenant is null
-- example  select pgonce.drop_scope('orders.create');
create or replace function pgonce.drop_scope(p_scope text, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_scope = '*' and p_tenant = '' then
        raise exception 'the contract of scope ''*'' cannot be dropped by itself' using errcode = '22023',
            hint = 'To refuse scopes that nobody defined: select pgonce.set_strict(true), or `pgonce strict on`.';
    end if;
    delete from pgonce.scope where tenant = p_tenant and scope = p_scope;
    return found;
end
$$;
