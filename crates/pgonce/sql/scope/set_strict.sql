-- pgonce.set_strict(p_on): turns strict mode on or off: it refuses claims in scopes without a contract. Owner
--          only.
-- answers  nothing
-- locks    the contract of scope "*"
-- writes   on: removes the contract of scope "*" and replaces pgonce._scope_is_allowed; off: restores both.
--          Nothing where the mode is that already
-- raises   22023 p_on is null
-- example  select pgonce.set_strict(true);
--          select pgonce.set_strict(false);
create or replace function pgonce.set_strict(p_on boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_on then
        delete from pgonce.scope where tenant = '' and scope = '*';
        execute 'create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text) '
            'returns boolean language sql stable parallel safe '
            'return exists (select from pgonce.scope s '
            'where s.tenant in (p_tenant, '''') and s.scope = p_scope)';
    else
        perform pgonce.define_scope('*', interval '7 days',
            p_note => 'the contract of scopes that nobody defined');
        execute 'create or replace function pgonce._scope_is_allowed(p_tenant text, p_scope text) '
            'returns boolean language sql stable parallel safe return true';
    end if;
end
$$;
revoke execute on function pgonce.set_strict(boolean) from public;
