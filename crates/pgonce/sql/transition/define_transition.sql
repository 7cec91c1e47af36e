-- pgonce.define_transition(p_machine, p_from, p_to, p_guard, p_topic): allows a transition of a state machine.
-- answers  nothing; a second call changes guard and topic
-- locks    what an upsert locks
-- writes   one row of pgonce.transition_rule; where it changes, one of pgonce.operator_act
-- raises   22023 a bad name; 42883 the guard is no function of (text, text, jsonb) that returns boolean
-- note     p_from '' is the state of an entity that does not exist yet. The guard is called with the tenant, the
--          entity and the command's data, with the rights of the command's sender and a search_path of
--          pg_catalog only: give names their schema. So it must belong to the owner of pgonce, to a superuser, to the
--          sender or to a member of the sender's role: else the command raises 42501. Where it is not true, the command is refused. With
--          p_topic every transition publishes an event there, of type machine.state and with the entity as
--          subject
-- example  select pgonce.define_transition('case', '', 'open');
--          select pgonce.define_transition('case', 'open', 'closed', p_topic => 'cases');
create or replace function pgonce.define_transition(p_machine text, p_from text, p_to text, p_guard text default null,
    p_topic text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_guard  text;
    v_before jsonb := (select to_jsonb(r) from pgonce.transition_rule r
        where r.machine = p_machine collate "C" and r.from_state = p_from collate "C" and r.to_state = p_to collate "C");
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
    insert into pgonce.transition_rule (machine, from_state, to_state, guard, topic)
    values (p_machine, p_from, p_to, v_guard, p_topic)
    on conflict on constraint one_row_per_rule do update set guard = excluded.guard, topic = excluded.topic;
    perform pgonce._audit_rules('machine ' || p_machine, v_before, (select to_jsonb(r) from pgonce.transition_rule r
        where r.machine = p_machine collate "C" and r.from_state = p_from collate "C" and r.to_state = p_to collate "C"));
end
$$;
