-- pgonce._contract_of(p_tenant, p_scope, p_begun): the contract in force for a scope. p_begun: for work that was begun under it, which
--          strict mode lets come to its end: it refuses claims.
-- answers  the tenant's own contract, else the general one, else the contract of scope '*'; where p_begun also that which strict
--          mode has put aside
-- raises   P4000 when there is none of them
create or replace function pgonce._contract_of(p_tenant text, p_scope text, p_begun boolean)
returns pgonce.scope
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_contract pgonce.scope;
begin
    -- One look by the primary key most of the time; one query for all three costs ten times that.
    select s.* into v_contract from pgonce.scope s where s.tenant = p_tenant collate "C" and s.scope = p_scope collate "C";
    if not found and p_tenant <> '' collate "C" then
        select s.* into v_contract from pgonce.scope s where s.tenant = '' and s.scope = p_scope collate "C";
    end if;
    if v_contract.scope is null then
        select s.* into v_contract from pgonce.scope s where s.tenant = '' and s.scope = '*';
    end if;
    if v_contract.scope is null and p_begun then
        select s.* into v_contract from pgonce.scope s where s.tenant = '' and s.scope = '*off';
    end if;
    if v_contract.scope is null then
        raise exception 'scope "%" is not defined', p_scope using errcode = 'P4000',
            detail = 'pgonce is strict here: the contract of scope ''*'' was dropped.',
            hint = format('Define it: select pgonce.define_scope(%L, interval ''7 days'').', p_scope);
    end if;
    return v_contract;
end
$$;
