-- pgonce._raise_message_id_reused(p_consumer, p_source, p_message_ids, p_tenant): says that message ids came before
--          with other payloads.
-- raises   P4050, always
create or replace function pgonce._raise_message_id_reused(p_consumer text, p_source text, p_message_ids text[], p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'message "%" of source "%" came before with another payload', p_message_ids[1], p_source
        using errcode = 'P4050',
        detail = format('Consumer "%s", tenant "%s"%s.', p_consumer, p_tenant, case when cardinality(p_message_ids) > 1
            then format(', and %s more: %s', cardinality(p_message_ids) - 1, array_to_string(p_message_ids[2:10], ', ')) else '' end),
        hint = 'Roll back, keep the message with pgonce.store_message, and ask the sender: an id names one message for ever.';
end
$$;
