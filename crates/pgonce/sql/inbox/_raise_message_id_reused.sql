-- pgonce._raise_message_id_reused(p_consumer, p_source, p_message_ids, p_tenant): says that message ids came before
--          with other payloads.
-- raises   P4050, always
create or replace function pgonce._raise_message_id_reused(p_consumer text, p_source text, p_message_ids text[], p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'a message of source "%" came before with another payload', p_source
        using errcode = 'P4050',
        -- Ids may be secrets, and errors are logged: a digest is enough to find one.
        detail = format('Consumer "%s", tenant "%s": %s of the batch; SHA-256 of the first id: %s.', p_consumer, p_tenant,
            cardinality(p_message_ids), encode(sha256(convert_to(p_message_ids[1], getdatabaseencoding())), 'hex')),
        hint = 'Roll back, keep the message with pgonce.store_message, and ask the sender: an id names one message for ever.';
end
$$;
