-- pgonce.accept(p_consumer, p_source, p_message_id, p_hash, p_tenant): decides whether a consumer applies a
--          message now. Call it in the transaction of the effect, or as a gate in its statement.
-- answers  true: it is new, apply it; false: it was applied before
-- locks    the message's marker: a second worker on the same message waits for the first to end
-- writes   one row of pgonce.inbox_marker; a rollback removes it with the effect
-- raises   P4050 the id came before with another payload; 22023 a name that does not fit
-- note     without p_hash another payload under the same id counts as the same message
-- example  begin;
--          select pgonce.accept('billing', 'shop', 'evt-1', '\x5e88');
--          -- true: apply the message here
--          commit;
create or replace function pgonce.accept(p_consumer text, p_source text, p_message_id text, p_hash bytea default null,
    p_tenant text default '')
returns boolean
language plpgsql volatile
as $$
begin
    -- Most messages are new: one insert, and whatever it does not fit goes the long way.
    if pgonce._message_fits(p_consumer, p_source, p_message_id, p_tenant) and pgonce._force_durable_commit() then
        insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
        values (pgonce.now(), pgonce._day_of(p_message_id), p_tenant, p_consumer, p_source, p_message_id, p_hash)
        on conflict do nothing;
        if found then
            return true;
        end if;
    end if;
    return pgonce._accept_full(p_consumer, p_source, p_message_id, p_hash, p_tenant);
end
$$;
