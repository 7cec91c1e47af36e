-- pgonce.drop_scope(p_scope, p_tenant): forgets a contract; intents keep their records.
-- answers  whether there was one
-- writes   deletes one row of pgonce.scope
-- raises   22023 for scope '*', which only pgonce.set_strict takes away
create or replace function pgonce.drop_scope(p_scope text, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = ''
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
