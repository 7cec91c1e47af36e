-- pgonce._is_marked(p_tenant, p_scope, p_key, p_fingerprint): is the latest attempt of this transaction one at this
--          intent, which found no record, and may it be settled with this fingerprint?
-- answers  true; otherwise pgonce._is_open_attempt and pgonce._check_names know more
-- note     inlined. The claim has checked the names
create or replace function pgonce._is_marked(p_tenant text, p_scope text, p_key text, p_fingerprint bytea)
returns boolean
language sql stable
return current_setting('pgonce.attempt', true) = pgonce._intent_name(p_tenant, p_scope, p_key) collate "C"
    and octet_length(p_fingerprint) between 1 and 64;
