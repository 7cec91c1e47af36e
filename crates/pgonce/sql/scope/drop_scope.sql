-- pgonce.drop_scope(p_scope, p_tenant): forgets a contract; intents keep their records.
-- answers  whether there was one
-- writes   deletes one row of pgonce.scope
create or replace function pgonce.drop_scope(p_scope text, p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = ''
as $$
begin
    delete from pgonce.scope where tenant = p_tenant and scope = p_scope;
    return found;
end
$$;
