-- pgonce._check_event(...): checks an event in every way.
-- answers  how many bytes of headers and payload it carries, as the text that readers get
-- raises   22023 a name or the headers do not fit; P4041 the payload is too large; P4042 the headers are
create or replace function pgonce._check_event(p_topic text, p_type text, p_subject text, p_payload jsonb,
    p_headers jsonb, p_tenant text)
returns integer
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_headers integer := pgonce._json_size(p_headers, 65536);
    v_payload integer := pgonce._json_size(p_payload, 1048576);
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
    elsif v_headers > 65536 then
        raise exception 'the headers of an event have % bytes; at most 65536', v_headers
            using errcode = 'P4042', hint = 'Keep what is large in the payload.';
    elsif jsonb_typeof(p_headers) is distinct from 'object' then
        raise exception 'the headers of an event are a JSON object'
            using errcode = '22023', hint = 'For example ''{"traceparent": "00-..."}''; leave them out where there are none.';
    elsif exists (select from jsonb_object_keys(p_headers) k where not pgonce._is_header_name(k)) then
        raise exception 'the header "%" cannot be sent: a name has 1 to 20 lower case letters and digits',
            (select left(k, 100) from jsonb_object_keys(p_headers) k where not pgonce._is_header_name(k) limit 1)
            using errcode = '22023', hint = 'Headers become attributes of a CloudEvent: write "traceparent" or "orderid", and none of its own '
                'names: specversion, id, source, type, subject, time, topic, tenant, data, datacontenttype.';
    elsif v_payload > 1048576 then
        raise exception 'the payload has % bytes; at most 1048576', v_payload
            using errcode = 'P4041', hint = 'Keep what is large in a store of its own, and put a reference to it into the event.';
    end if;
    return v_headers + coalesce(v_payload, 0);
end
$$;
