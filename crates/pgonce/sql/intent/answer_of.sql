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
      from pgonce.intent i
     where i.tenant = p_tenant and i.scope = p_scope and i.key = p_key
       and i.status = 'succeeded' and i.fingerprint = p_fingerprint
       and i.gone_at is null and i.expires_at > pgonce.now();
end;
