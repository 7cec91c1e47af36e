-- pgonce._message_fits(p_consumer, p_source, p_message_id, p_tenant): may a message be named so?
-- answers  true, or not true: then pgonce._raise_message_fenced says what is wrong
-- note     inlined
create or replace function pgonce._message_fits(p_consumer text, p_source text, p_message_id text, p_tenant text)
returns boolean
language sql immutable parallel safe
return octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
    and octet_length(p_message_id) between 1 and 255 and octet_length(p_tenant) <= 255;
