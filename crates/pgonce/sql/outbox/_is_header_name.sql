-- pgonce._is_header_name(p_name): can a header of an event have this name?
-- answers  true where every sink can carry it, as an extension attribute of a CloudEvent
-- note     the SDK has the same rule: Event::check
create or replace function pgonce._is_header_name(p_name text)
returns boolean
language sql immutable parallel safe
return p_name collate "C" ~ '^[a-z0-9]{1,20}$' and p_name collate "C" not in ('specversion', 'id', 'source', 'type', 'subject',
    'time', 'topic', 'tenant', 'data', 'datacontenttype');
