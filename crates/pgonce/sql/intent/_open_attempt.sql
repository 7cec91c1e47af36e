-- pgonce._open_attempt(p_tenant, p_scope, p_key, p_first_at): marks this transaction as the one that an attempt
--          at this intent lives in.
-- answers  'fresh'; null where an attempt at the intent lives in this transaction already
-- writes   the setting pgonce.attempt, until the end of the transaction: the locks of all intents that are
--          attempted in it; and of this one when its record was made, the lengths of its names and its names,
--          from which pgonce.publish derives message ids
-- note     a COMMIT or ROLLBACK sent by hand takes the mark away, and so does a rollback to a
--          savepoint from before the claim; see pgonce._assert_same_transaction
create or replace function pgonce._open_attempt(p_tenant text, p_scope text, p_key text, p_first_at timestamptz default null)
returns text
language sql volatile
return case when not pgonce._is_open_attempt(p_tenant, p_scope, p_key)
    and set_config('pgonce.attempt', pgonce._lock_id(p_tenant, p_scope, p_key)::text || ','
        || split_part(coalesce(current_setting('pgonce.attempt', true), ''), ';', 1)
        || ';' || coalesce(extract(epoch from p_first_at)::text, '')
        || ';' || octet_length(p_tenant)::text || ',' || octet_length(p_scope)::text || ',' || p_tenant || p_scope || p_key, true)
    is not null then 'fresh' end;
