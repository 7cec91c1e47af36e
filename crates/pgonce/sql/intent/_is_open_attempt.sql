-- pgonce._is_open_attempt(p_tenant, p_scope, p_key): does an attempt at this intent live in this transaction?
-- note     inlined
create or replace function pgonce._is_open_attempt(p_tenant text, p_scope text, p_key text)
returns boolean
language sql volatile
return strpos(',' || split_part(coalesce(current_setting('pgonce.attempt', true), ''), ';', 1),
    ',' || pgonce._lock_id(p_tenant, p_scope, p_key)::text || ',') > 0;
