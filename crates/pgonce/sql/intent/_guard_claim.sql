-- pgonce._guard_claim(p_tenant, p_scope, p_key): opens the commit guard of an atomic claim, where its contract has one.
-- answers  true
-- locks    nothing; the caller holds the intent's advisory lock
-- writes   a row of pgonce.open_claim, which fires the trigger every_claim_is_settled before the commit
-- raises   P4000 in strict mode where the scope has no contract
create or replace function pgonce._guard_claim(p_tenant text, p_scope text, p_key text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if (pgonce._contract(p_tenant, p_scope)).commit_guard then
        insert into pgonce.open_claim (tenant, scope, key) values (p_tenant, p_scope, p_key);
    end if;
    return true;
end
$$;
