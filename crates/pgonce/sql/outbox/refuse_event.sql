-- pgonce.refuse_event(…): says what is wrong with an event, where only an expression fits.
-- raises   22023, always
create or replace function pgonce.refuse_event(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_headers jsonb, p_tenant text)
returns integer
language plpgsql volatile set search_path = ''
as $$
begin
    if (octet_length(p_topic) between 1 and 255) is not true then
        raise exception 'an event needs a topic of 1 to 255 bytes, not %', coalesce(octet_length(p_topic)::text, 'null')
            using errcode = '22023', hint = 'Say where it goes, such as ''orders''.';
    elsif (octet_length(p_type) between 1 and 255) is not true then
        raise exception 'an event needs a type of 1 to 255 bytes, not %', coalesce(octet_length(p_type)::text, 'null')
            using errcode = '22023', hint = 'Say what happened, such as ''order.created''.';
    elsif (octet_length(p_subject) between 1 and 255) is false then
        raise exception 'the subject of an event has % bytes; 1 to 255 are allowed', octet_length(p_subject)
            using errcode = '22023', hint = 'Name what its order matters for, such as ''order-7''; null where none does.';
    elsif p_tenant is null or octet_length(p_tenant) > 255 then
        raise exception 'the tenant of an event has % bytes; at most 255', coalesce(octet_length(p_tenant)::text, 'null')
            using errcode = '22023', hint = 'Leave it out, or pass the empty text, where there are no tenants.';
    elsif jsonb_typeof(p_headers) is distinct from 'object' or pg_column_size(p_headers) > 65536 then
        raise exception 'the headers of an event are a JSON object of at most 65536 bytes'
            using errcode = '22023', hint = 'For example ''{"traceparent": "00-…"}''; leave them out where there are none.';
    end if;
    raise exception 'the payload has % bytes; at most 1048576', pg_column_size(p_payload)
        using errcode = '22023', hint = 'Keep what is large in a store of its own, and put a reference to it into the event.';
end
$$;
