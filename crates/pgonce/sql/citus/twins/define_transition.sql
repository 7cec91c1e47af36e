-- pgonce.define_transition on Citus: as transition/define_transition.sql; the rule is written on every server.
create or replace function pgonce.define_transition(p_machine text, p_from text, p_to text, p_guard text default null,
    p_topic text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_guard text;
begin
    if (octet_length(p_machine) between 1 and 200) is not true or (octet_length(p_to) between 1 and 200) is not true
        or (octet_length(p_from) <= 200) is not true
    then
        raise exception 'a transition needs a machine and two states, each of at most 200 bytes' using errcode = '22023',
            hint = 'For example define_transition(''case'', ''open'', ''closed''); from '''' creates an entity.';
    end if;
    if p_guard is not null then
        -- Its full name, so that no search_path can put another in its place.
        select format('%I.%I', n.nspname, p.proname) into v_guard
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where p.oid = to_regprocedure(p_guard || '(text, text, jsonb)') and p.prorettype = 'boolean'::regtype;
        if v_guard is null then
            raise exception 'there is no function %(text, text, jsonb) that returns boolean', p_guard using errcode = '42883',
                hint = 'A guard is called with tenant, entity and data. Name its schema: public.may_close.';
        end if;
    end if;
    insert into pgonce.transition_rule (tenant, machine, from_state, to_state, guard, topic)
    values ('', p_machine, p_from, p_to, v_guard, p_topic)
    on conflict (tenant, machine, from_state, to_state) do update set guard = excluded.guard, topic = excluded.topic;
end
$$;
