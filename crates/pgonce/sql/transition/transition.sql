-- pgonce.transition(p_machine, p_entity, p_to, p_command, p_expected_state, p_expected_version, p_data,
--          p_tenant): moves an entity to a state, once for each command.
-- answers  one row. outcome: applied; incompatible_state, no rule leads there from where it is; stale, it is not
--          in the expected state or version; lost_race, it was when the command began, and another command
--          came first; refused, the guard said no. made_now false: this command was decided before, and this
--          is the same answer. state and version are those after the command, or those that it met
-- locks    the entity
-- writes   the command with its outcome; when applied the entity, and an event where the rule has a topic
-- raises   22023 a bad name; P4080 the command was sent before with other content; 42501 the guard belongs to a role that may not
--          act as the sender
-- note     a rejected command changes nothing but the timeline: to try again, send another command. Ids that begin with
--          'timer ' belong to timers
-- example  select pgonce.define_transition('ticket', '', 'open'), pgonce.define_transition('ticket', 'open', 'closed');
--          select * from pgonce.transition('ticket', '7', 'open', 'command-1');
--          select * from pgonce.transition('ticket', '7', 'closed', 'command-2', p_expected_state => 'open');
create or replace function pgonce.transition(p_machine text, p_entity text, p_to text, p_command text,
    p_expected_state text default null, p_expected_version bigint default null, p_data jsonb default null,
    p_tenant text default '')
returns table (outcome text, made_now boolean, state text, version bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_step    record;
    v_allowed boolean;
begin
    v_step := pgonce._transition(p_machine, p_entity, p_to, p_command, p_expected_state, p_expected_version, p_data, p_tenant, null);
    if v_step.guard is not null then
        perform pgonce._check_guard(v_step.guard);
        execute format('select %s($1, $2, $3)', v_step.guard) into v_allowed using coalesce(p_tenant, ''), p_entity, p_data;
        v_step := pgonce._transition(p_machine, p_entity, p_to, p_command, p_expected_state, p_expected_version, p_data, p_tenant,
            coalesce(v_allowed, false));
    end if;
    return query select v_step.outcome, v_step.made_now, v_step.state, v_step.version;
end
$$;
