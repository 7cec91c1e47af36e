-- pgonce.accept on Citus: as inbox/accept.sql, delegated to the server that has the tenant's markers.
-- note     by one insert and, where it finds the marker, one look. What a statement needs is computed before it: Citus
--          calls functions of a distributed statement itself, and early
create or replace function pgonce.accept(p_consumer text, p_source text, p_message_id text, p_hash bytea default null,
    p_tenant text default '')
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_day  date;
    v_now  timestamptz;
    v_same boolean;
begin
    if pgonce._message_fits(p_consumer, p_source, p_message_id, p_tenant) is not true then
        perform pgonce._raise_message_fenced(p_consumer, p_source, p_message_id, p_tenant);
    end if;
    perform pgonce._force_durable_commit();
    v_day := pgonce._day_of(p_message_id);
    for v_try in 1..10 loop
        v_now := pgonce.now();
        insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id, hash)
        values (v_now, v_day, p_tenant, p_consumer, p_source, p_message_id, p_hash)
        on conflict do nothing;
        if found then
            return true;
        end if;
        select (m.hash <> p_hash) is not true into v_same from pgonce.inbox_marker m
         where m.tenant = p_tenant and m.consumer = p_consumer collate "C" and m.source = p_source collate "C"
           and m.message_id = p_message_id collate "C" and m.day = v_day;
        if found then
            if not v_same then
                perform pgonce._raise_message_id_reused(p_consumer, p_source, array[p_message_id], p_tenant);
            end if;
            return false;
        end if;
        -- Neither made nor there: it was purged in between. Try again.
    end loop;
    raise exception 'the marker of a message changes too fast' using errcode = '40001',
        hint = 'Run the whole transaction again.';
end
$$;
