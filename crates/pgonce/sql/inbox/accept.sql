-- pgonce.accept(p_consumer, p_source, p_message_id, p_hash, p_tenant): may this consumer apply this
--          message now? Call it in the transaction of the effect, or as a gate in its very statement:
--            with gate as (select pgonce.accept('billing', 'shop', 'evt-1', sha256('…')) as fresh)
--            insert into invoice select … from gate where fresh
-- answers  true: it is new, apply it; false: it was applied before
-- locks    the message's marker: a second worker on the same message waits for the first to end
-- writes   one row of pgonce.inbox_marker; rolled back, it is gone with the effect
-- raises   P4050 the id came before with another payload; 22023 a name that does not fit
-- note     without p_hash another payload under the same id is taken for the same message
create or replace function pgonce.accept(p_consumer text, p_source text, p_message_id text, p_hash bytea default null,
    p_tenant text default '')
returns boolean
language plpgsql volatile
as $$
declare
    v_hash bytea;
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
        and octet_length(p_message_id) between 1 and 255 and octet_length(p_tenant) <= 255) is not true then
        perform pgonce.refuse_message(p_consumer, p_source, p_message_id, p_tenant);
    end if;
    perform pgonce.insist_on_durable_commit();
    for v_try in 1..10 loop
        insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
        values (pgonce.now(), pgonce.day_of(p_message_id), p_tenant, p_consumer, p_source, p_message_id, p_hash)
        on conflict do nothing;
        if found then
            return true;
        end if;
        select m.hash into v_hash from pgonce.inbox_marker m
         where m.tenant = p_tenant and m.consumer = p_consumer and m.source = p_source
           and m.message_id = p_message_id and m.day = pgonce.day_of(p_message_id);
        if found then
            if v_hash <> p_hash then
                perform pgonce.refuse_reuse(p_consumer, p_source, array[p_message_id], p_tenant);
            end if;
            return false;
        end if;
        -- Neither made nor there: it was purged in between. Look again.
    end loop;
    raise exception 'the marker of message "%" changes too fast', p_message_id using errcode = '40001',
        hint = 'Run the whole transaction again.';
end
$$;
