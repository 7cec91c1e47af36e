-- pgonce._is_wanted(p_event..., p_topics, p_types, p_tenants): does a subscription with these filters want it?
-- note     inlined
create or replace function pgonce._is_wanted(p_topic text, p_type text, p_tenant text,
    p_topics text[], p_types text[], p_tenants text[])
returns boolean
language sql immutable parallel safe
return (p_topics is null or p_topic like any (p_topics)) and (p_types is null or p_type like any (p_types))
    and (p_tenants is null or p_tenant like any (p_tenants));
