-- pgonce._names_fit(p_tenant, p_scope, p_key, p_fingerprint): may an intent be named so?
-- answers  true, or not true: then pgonce._check_names says what is wrong
-- note     inlined; the quick half of pgonce._check_names
create or replace function pgonce._names_fit(p_tenant text, p_scope text, p_key text, p_fingerprint bytea)
returns boolean
language sql immutable parallel safe
return octet_length(p_key) between 1 and 255 and octet_length(p_fingerprint) between 1 and 64
    and octet_length(p_scope) between 1 and 255 and octet_length(p_tenant) <= 255;
