-- pgonce._open_attempt(p_tenant, p_scope, p_key): marks this transaction as the one that an attempt
--          at this intent lives in.
-- answers  'fresh'
-- writes   the setting pgonce.attempt, until the end of the transaction: the intent's names, told
--          apart by their lengths; pgonce.publish derives message ids from them
-- note     a COMMIT or ROLLBACK sent by hand takes the mark away, and so does a rollback to a
--          savepoint from before the claim; see pgonce._assert_same_transaction
create or replace function pgonce._open_attempt(p_tenant text, p_scope text, p_key text)
returns text
language sql volatile
return case when set_config('pgonce.attempt',
    octet_length(p_tenant)::text || ',' || octet_length(p_scope)::text || ',' || p_tenant || p_scope || p_key, true)
    is not null then 'fresh' end;
