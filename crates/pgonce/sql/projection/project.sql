-- pgonce.project(p_projection, p_message_id, p_type, p_entity, p_payload, p_headers, p_tenant): applies an
--          event to a projection, unless it is applied already.
-- answers  true: it was applied; false: it is a duplicate, or late
-- locks    the projection, shared with others that apply; the entity's gate, or the event's marker
-- writes   the gate, and what the projection's function writes
-- raises   42704 no such projection; 22023 the gate is 'version' and the event carries none
-- example  create table public.balance (account text primary key, cents bigint);
--          create function public.apply_balance(p_into regclass, p_event pgonce.projected) returns void language plpgsql as 'begin end';
--          select pgonce.define_projection('balance', 'public.balance', 'public.apply_balance', 'marker');
--          select pgonce.project('balance', 'evt-1', 'paid', 'account-7', '{"cents": 100}');
create or replace function pgonce.project(p_projection text, p_message_id text, p_type text, p_entity text,
    p_payload jsonb, p_headers jsonb default '{}', p_tenant text default '')
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_projection pgonce.projection := pgonce._require_projection(p_projection);
    v_event      pgonce.projected;
begin
    perform pg_advisory_xact_lock_shared(pgonce._projection_lock(p_projection, ''));
    v_event := row(p_message_id, p_tenant, p_type, p_entity, pgonce._version_of(p_headers, p_payload), p_headers, p_payload);
    if v_projection.gate = 'version' then
        if v_event.version is null then
            raise exception 'the event carries no version' using errcode = '22023',
                hint = 'Give it a header or a field "version" that counts up for each entity, or gate the projection by marker.';
        elsif not pgonce.advance_projection(p_projection, p_entity, v_event.version, p_tenant) then
            return false;
        end if;
    elsif not pgonce.accept('projection:' || p_projection, 'event', p_message_id, null, p_tenant) then
        return false;
    end if;
    execute format('select %s($1, $2)', v_projection.apply) using v_projection.into_table::regclass, v_event;
    return true;
end
$$;
