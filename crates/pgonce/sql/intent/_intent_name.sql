-- pgonce._intent_name(p_tenant, p_scope, p_key): the names of an intent as one text; no two intents share one.
-- note     inlined. What an open attempt is marked with; pgonce.publish derives message ids from it
create or replace function pgonce._intent_name(p_tenant text, p_scope text, p_key text)
returns text
language sql immutable parallel safe
return (octet_length(p_tenant) * 256 + octet_length(p_scope))::text || ',' || p_tenant || p_scope || p_key;
