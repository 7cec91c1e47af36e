-- pgonce._simple_retention(p_tenant, p_scope): how long successes of a scope are kept, where all of them is.
-- answers  the contract's retention as text; null where the contract keeps less than the answer, or limits more than
--          answers over 16 KiB
-- raises   P4000 in strict mode where the scope has no contract
create or replace function pgonce._simple_retention(p_tenant text, p_scope text)
returns text
language sql stable
begin atomic
    select c.retention::text from pgonce._contract(p_tenant, p_scope) c
     where c.storage = 'answer' and c.max_answer >= 16384 and c.max_keys is null;
end;
