-- pgonce._lock_id(p_tenant, p_scope, p_key): the advisory lock of an intent, or of a name.
-- answers  64 bits; two names that meet in one number cost a needless "busy", never a second
--          effect: the primary key decides that
-- note     the seed holds the schema's name, which stands before a dot when the file is loaded: two
--          installations in one database do not meet
create or replace function pgonce._lock_id(p_tenant text, p_scope text, p_key text)
returns bigint
language sql immutable parallel safe
return hashtextextended((p_tenant || chr(31) || p_scope || chr(31) || p_key) collate "C",
    20260101 + hashtext('pgonce.'));
