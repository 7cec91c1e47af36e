-- pgonce.ledger_verify on Citus: as ledger/ledger_verify.sql, tenant by tenant, each on the server that has its ledger.
-- note     null: it finds tenants by reading every shard
create or replace function pgonce.ledger_verify(p_tenant text default null)
returns table (tenant text, problem text, account text, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant text;
begin
    if p_tenant is not null then
        return query select v.tenant, v.problem, v.account, v.detail from pgonce._ledger_verify_tenant(p_tenant) v;
        return;
    end if;
    for v_tenant in
        select a.tenant from pgonce.ledger_account a group by a.tenant
        union select g.tenant from pgonce.ledger_group g group by g.tenant
        union select e.tenant from pgonce.ledger_entry e group by e.tenant
    loop
        return query select v.tenant, v.problem, v.account, v.detail from pgonce._ledger_verify_tenant(v_tenant) v;
    end loop;
end
$$;
