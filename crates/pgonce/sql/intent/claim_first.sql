-- pgonce.claim_first(p_scope, p_key, p_fingerprint, p_tenant): the claim of a command that is one statement: claim,
--          effect and success in autocommit, in one round trip.
-- answers  one row: the fence to succeed under
-- locks    the intent's transaction-level advisory lock
-- writes   as pgonce.claim
-- raises   P4029 another attempt holds the intent, or the transaction cannot write; P4000 P4001 P4003 22023 bad input
-- note     it looks for no earlier answer: look with pgonce.claim first, unless this is known to be the first attempt.
--          An intent that has a record makes pgonce.succeed raise P4010, and all of the statement is rolled back.
--          Keep the order of the example: the claim comes before the effect, and each part is read once
-- example  with effect as materialized (select 7 as order_id),
--               claimed as materialized (select fence from pgonce.claim_first('orders.create', 'order-9', '\x5e88')),
--               answer as materialized (
--                   select c.fence, case when c.fence is not null then (select pg_catalog.to_jsonb(e.*) from effect e) end as value
--                     from claimed c)
--          select value, pgonce.succeed('orders.create', 'order-9', '\x5e88', fence, value) from answer;
create or replace function pgonce.claim_first(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (fence bigint)
language sql stable
begin atomic
    select case when h.holds then 1::bigint else pgonce._raise_busy() end
      from pgonce._claim_optimistic(p_scope, p_key, p_fingerprint, p_tenant) h;
end;
