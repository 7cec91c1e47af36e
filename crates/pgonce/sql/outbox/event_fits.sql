-- pgonce.event_fits(…): may an event be published so?
-- answers  true, or not true: then pgonce.refuse_event says what is wrong
create or replace function pgonce.event_fits(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_headers jsonb, p_tenant text)
returns boolean
language sql immutable parallel safe
return octet_length(p_topic) between 1 and 255 and octet_length(p_type) between 1 and 255
    and (p_subject is null or octet_length(p_subject) between 1 and 255) and octet_length(p_tenant) <= 255
    and jsonb_typeof(p_headers) = 'object' and pg_column_size(p_headers) <= 65536
    and (p_payload is null or pg_column_size(p_payload) <= 1048576);
