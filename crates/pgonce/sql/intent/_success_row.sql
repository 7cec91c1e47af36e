-- pgonce._success_row(...): the finished row of an atomic success, as its contract wants it kept.
-- answers  one row for pgonce.intent
-- raises   P4000 in strict mode where the scope has no contract; P4040 P4044 a limit of the contract
-- note     inlined: an SDK inserts it with one prepared statement and no PL/pgSQL. A violated
--          one_row_per_intent then means: lost the race, roll back and claim again.
--          The common contract (of this tenant, keeps answers) costs one look-up; all others
--          go through pgonce._contract.
create or replace function pgonce._success_row(p_scope text, p_key text, p_fingerprint bytea,
    p_answer jsonb, p_ref_type text, p_ref_id text, p_tenant text, p_correlation text, p_owner text)
returns setof pgonce.intent
language sql stable
begin atomic
    select 1::bigint, c.now,
           c.now + coalesce(c.retention, (pgonce._contract(p_tenant, p_scope)).retention),
           1, 'succeeded'::pgonce.status, p_tenant, p_scope, p_key, p_fingerprint,
           case when c.retention is not null then p_answer
                else pgonce._answer_to_keep(pgonce._contract(p_tenant, p_scope), p_scope, p_answer, p_tenant, true) end,
           case when c.retention is not null
                  or (pgonce._contract(p_tenant, p_scope)).storage in ('answer', 'reference') then p_ref_type end,
           case when c.retention is not null
                  or (pgonce._contract(p_tenant, p_scope)).storage in ('answer', 'reference') then p_ref_id end,
           p_correlation, p_owner, null::timestamptz, null::timestamptz, null::text, null::text,
           null::timestamptz, null::timestamptz
      from (
        select pgonce.now() as now,
               (select s.retention from pgonce.scope s
                 where s.tenant = p_tenant and s.scope = p_scope and s.storage = 'answer'
                   and s.max_keys is null and coalesce(octet_length(p_answer::text), 0) <= s.max_answer) as retention
      ) as c;
end;
