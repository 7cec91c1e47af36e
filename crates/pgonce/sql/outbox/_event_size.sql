-- pgonce._event_size(...): how many bytes of headers and payload an event carries, once it was checked.
-- raises   as pgonce._check_event
-- note     inlined; stable, or pgonce._event_row would not be. What is plainly in order is let through
--          here, with as few comparisons as can be: names of 1 to 128 bytes, a tenant of less than 128,
--          no headers, and a payload that is small and has no long text. The rest is weighed. The inner case
--          keeps a planner that knows the payload from making the text before the payload is known to be small
create or replace function pgonce._event_size(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_headers jsonb, p_tenant text)
returns integer
language sql stable
return coalesce(
    case when ((octet_length(p_topic) - 1) | (octet_length(p_type) - 1) | (octet_length(p_subject) - 1)
               | octet_length(p_tenant)) & -128 = 0
          and p_headers = '{}'
         then 2 + nullif(least(octet_length((case when pg_column_size(p_payload) & -8192 = 0
                                                   and pg_column_compression(p_payload) is null
                                                  then p_payload end)::text), 16384), 16384) end,
    pgonce._check_event(p_topic, p_type, p_subject, p_payload, p_headers, p_tenant));
