-- pgonce.answer_of(p_scope, p_key, p_fingerprint, p_tenant): reads the stored answer, for a caller who knows
--          that this is a retry. Needs no transaction.
-- answers  one row where the intent succeeded with this request and its answer is kept; no row means nothing:
--          claim
-- locks    nothing
-- writes   nothing
-- raises   nothing
-- example  select * from pgonce.answer_of('orders.create', 'order-7', '\x5e88');
create or replace function pgonce.answer_of(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (answer jsonb, ref_type text, ref_id text, attempts integer)
language sql stable
begin atomic
    select i.answer, i.ref_type, i.ref_id, i.attempts
      from (select set_config('pgonce.key', p_key, true) as key offset 0) as one  -- first: see the policy by_key
     cross join lateral (
        select n.answer, n.ref_type, n.ref_id, n.attempts
          from pgonce.intent n
         where n.tenant = p_tenant and n.scope = p_scope and n.key = one.key
           and n.status = 'succeeded' and n.fingerprint = p_fingerprint
           and n.gone_at is null and n.expires_at > pgonce.now()
        offset 0) i;
end;
