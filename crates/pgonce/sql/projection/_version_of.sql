-- pgonce._version_of(p_headers, p_payload): the version that an event carries: its header "version", else the
--          field "version" of its payload.
-- answers  null where it carries none that is a whole number
create or replace function pgonce._version_of(p_headers jsonb, p_payload jsonb)
returns bigint
language sql immutable parallel safe
return case when coalesce(p_headers ->> 'version', p_payload ->> 'version') ~ '^-?[0-9]{1,18}$'
    then coalesce(p_headers ->> 'version', p_payload ->> 'version')::bigint end;
