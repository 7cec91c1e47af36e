-- pgonce._raise_message_fenced(p_consumer, p_source, p_message_id, p_tenant): says what is wrong with the names
--          of a message.
-- raises   22023, always
create or replace function pgonce._raise_message_fenced(p_consumer text, p_source text, p_message_id text, p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if (octet_length(p_consumer) between 1 and 255) is not true then
        raise exception 'a consumer needs a name of 1 to 255 bytes, not %', coalesce(octet_length(p_consumer)::text, 'null')
            using errcode = '22023', hint = 'Name who applies the message, such as ''billing''.';
    elsif (octet_length(p_source) between 1 and 255) is not true then
        raise exception 'a source needs a name of 1 to 255 bytes, not %', coalesce(octet_length(p_source)::text, 'null')
            using errcode = '22023', hint = 'Name where the message comes from, such as ''nats:orders''.';
    elsif p_tenant is null or octet_length(p_tenant) > 255 then
        raise exception 'the tenant of a message has % bytes; at most 255', coalesce(octet_length(p_tenant)::text, 'null')
            using errcode = '22023', hint = 'Leave it out, or pass the empty text, where there are no tenants.';
    end if;
    raise exception 'a message needs an id of 1 to 255 bytes, not %', coalesce(octet_length(p_message_id)::text, 'null')
        using errcode = '22023',
        hint = 'Pass the sender''s id, the same at every delivery; a message without one cannot be distinguished from its copy.';
end
$$;
