-- pgonce._inbox_rules(p_consumer, p_tenant): the contract that holds for a consumer: its own for this tenant,
--          its own, or that of '*'.
create or replace function pgonce._inbox_rules(p_consumer text, p_tenant text default '')
returns pgonce.inbox_contract
language sql stable
begin atomic
    select c from pgonce.inbox_contract c
     where (c.tenant, c.consumer) in ((p_tenant, p_consumer), ('', p_consumer), ('', '*'))
     order by c.consumer = p_consumer desc, c.tenant = p_tenant desc
     limit 1;
end;
