-- pgonce._effect_key(p_tenant, p_scope, p_key, p_step, p_after): the key under which a provider gets a step of a command.
-- answers  a UUID of version 8 made of these names: the same on every attempt, on every machine. p_after: what sets this life of the
--          command apart from others: a name of its own or, where the provider honours keys, the effect key that the step had in the life
--          before, under which the provider would take the new request for the old one
drop function if exists pgonce._effect_key(text, text, text, text);
create or replace function pgonce._effect_key(p_tenant text, p_scope text, p_key text, p_step text, p_after uuid default null)
returns uuid
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
declare
    v_name bytea := '';
    v_part text;
    v_hex  text;
begin
    foreach v_part in array array_remove(array['pgonce effect 1', p_tenant, p_scope, p_key, p_step, p_after::text], null) loop
        v_name := v_name || int8send(octet_length(convert_to(v_part, 'UTF8'))::bigint) || convert_to(v_part, 'UTF8');
    end loop;
    v_hex := encode(sha256(v_name), 'hex');
    return overlay(overlay(left(v_hex, 32) placing '8' from 13 for 1) placing '8' from 17 for 1)::uuid;
end
$$;
