-- pgonce._derived_message_id(p_type): the id of the next event of this type in the open attempt.
-- answers  a UUID made of the intent's names, this life of its key, the type and how many of the type came
--          before: the same for every attempt that finds a record of this life. The transaction must hold an
--          attempt.
-- writes   the setting pgonce.published, until the end of the transaction: how many of which type
-- note     a rollback to a savepoint takes the count back, as it does the events. An atomic attempt that finds
--          no record begins a life with its transaction: nothing of an earlier one of that kind was committed
create or replace function pgonce._derived_message_id(p_type text)
returns uuid
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_attempt text := current_setting('pgonce.attempt', true);
    v_counts  jsonb;
    v_key     text;
    v_ordinal bigint;
    v_hex     text;
begin
    if not v_attempt ^@ '@' then
        v_attempt := '@' || extract(epoch from transaction_timestamp())::text || ';' || v_attempt;
    end if;
    v_key := octet_length(v_attempt) || ':' || v_attempt || p_type;
    v_counts := coalesce(nullif(current_setting('pgonce.published', true), ''), '{}')::jsonb;
    v_ordinal := coalesce((v_counts ->> v_key)::bigint, 0) + 1;
    perform set_config('pgonce.published', (v_counts || jsonb_build_object(v_key, v_ordinal))::text, true);
    v_hex := encode(sha256(convert_to(v_key || ':' || v_ordinal, 'UTF8')), 'hex');
    -- The marks of a UUID of version 8: made by a rule of our own.
    return overlay(overlay(left(v_hex, 32) placing '8' from 13 for 1) placing '8' from 17 for 1)::uuid;
end
$$;
