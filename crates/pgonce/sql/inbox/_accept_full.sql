-- pgonce._accept_full(p_consumer, p_source, p_message_id, p_hash, p_tenant): pgonce.accept, for a message that
--          the quick insert did not take: it is known, or its names do not fit.
-- answers  as pgonce.accept
-- locks    as pgonce.accept
-- writes   as pgonce.accept
-- raises   as pgonce.accept; 40001 its marker comes and goes
create or replace function pgonce._accept_full(p_consumer text, p_source text, p_message_id text, p_hash bytea, p_tenant text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_same boolean;
begin
    if pgonce._message_fits(p_consumer, p_source, p_message_id, p_tenant) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, p_message_id, p_tenant);
    end if;
    perform pgonce._force_durable_commit();
    for v_try in 1..10 loop
        select (m.hash operator(pg_catalog.<>) p_hash) is not true into v_same from pgonce.inbox_marker m
         where m.tenant operator(pg_catalog.=) p_tenant collate "C" and m.consumer operator(pg_catalog.=) p_consumer collate "C"
           and m.source operator(pg_catalog.=) p_source collate "C"
           and m.message_id operator(pg_catalog.=) p_message_id collate "C"
           and m.day operator(pg_catalog.=) pgonce._day_of(p_message_id);
        if found then
            if not v_same then
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
    raise exception 'the marker of a message changes too fast' using errcode = '40001',
        hint = 'Run the whole transaction again.';
end
$$;
