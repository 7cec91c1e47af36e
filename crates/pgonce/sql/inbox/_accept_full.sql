-- pgonce._accept_full(p_consumer, p_source, p_message_id, p_hash, p_tenant): pgonce.accept, for a message that
--          the quick insert did not take: it is known, or its names do not fit.
-- answers  as pgonce.accept
-- locks    as pgonce.accept
-- writes   as pgonce.accept
-- raises   as pgonce.accept; 40001 its marker comes and goes
create or replace function pgonce._accept_full(p_consumer text, p_source text, p_message_id text, p_hash bytea, p_tenant text)
returns boolean
language plpgsql volatile
as $$
declare
    v_hash bytea;
begin
    if (octet_length(p_consumer) between 1 and 255 and octet_length(p_source) between 1 and 255
        and octet_length(p_message_id) between 1 and 255 and octet_length(p_tenant) <= 255) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, p_message_id, p_tenant);
    end if;
    perform pgonce._force_durable_commit();
    for v_try in 1..10 loop
        select m.hash into v_hash from pgonce.inbox_marker m
         where m.tenant = p_tenant and m.consumer = p_consumer and m.source = p_source
           and m.message_id = p_message_id and m.day = pgonce._day_of(p_message_id);
        if found then
            if v_hash <> p_hash then
                perform pgonce._raise_message_id_reused(p_consumer, p_source, array[p_message_id], p_tenant);
            end if;
            return false;
        end if;
        -- Neither made nor there: it was purged in between. Try again.
        insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
        values (pgonce.now(), pgonce._day_of(p_message_id), p_tenant, p_consumer, p_source, p_message_id, p_hash)
        on conflict do nothing;
        if found then
            return true;
        end if;
    end loop;
    raise exception 'the marker of message "%" changes too fast', p_message_id using errcode = '40001',
        hint = 'Run the whole transaction again.';
end
$$;
