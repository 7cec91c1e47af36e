-- pgonce.transition(p_machine, p_entity, p_to, p_command, p_expected_state, p_expected_version, p_data,
--          p_tenant): moves an entity to a state, once for each command.
-- answers  one row. outcome: applied; incompatible_state, no rule leads there from where it is; stale, it is not
--          in the expected state or version; lost_race, it was when the command began, and another command
--          came first; refused, the guard said no. made_now false: this command was decided before, and this
--          is the same answer. state and version are those after the command, or those that it met
-- locks    the entity
-- writes   the command with its outcome; when applied the entity, and an event where the rule has a topic
-- raises   22023 a bad name; P4080 the command was sent before with other content
-- note     a rejected command changes nothing but the timeline: to try again, send another command
-- example  select pgonce.define_transition('ticket', '', 'open'), pgonce.define_transition('ticket', 'open', 'closed');
--          select * from pgonce.transition('ticket', '7', 'open', 'command-1');
--          select * from pgonce.transition('ticket', '7', 'closed', 'command-2', p_expected_state => 'open');
create or replace function pgonce.transition(p_machine text, p_entity text, p_to text, p_command text,
    p_expected_state text default null, p_expected_version bigint default null, p_data jsonb default null,
    p_tenant text default '')
returns table (outcome text, made_now boolean, state text, version bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant  text := coalesce(p_tenant, '');
    v_digest  bytea := sha256(convert_to(jsonb_build_array(p_entity, p_to, p_expected_state, p_expected_version, p_data)::text, 'UTF8'));
    v_before  record;
    v_now     record;
    v_rule    pgonce.transition_rule;
    v_known   pgonce.transition_command;
    v_allowed boolean;
    v_outcome text := 'applied';
begin
    if (octet_length(p_machine) between 1 and 200) is not true or (octet_length(p_entity) between 1 and 255) is not true
        or (octet_length(p_to) between 1 and 200) is not true or (octet_length(p_command) between 1 and 255) is not true
    then
        raise exception 'a command names a machine, an entity, a state and itself' using errcode = '22023',
            hint = 'For example transition(''case'', ''7'', ''closed'', ''command-1'').';
    end if;
    -- Where the entity was when the command began.
    select e.state, e.version into v_before from pgonce.transition_entity e
     where e.tenant = v_tenant and e.machine = p_machine and e.entity = p_entity;
    -- Commands to one entity take turns, also while it does not exist.
    perform pg_advisory_xact_lock(pgonce._lock_id(v_tenant, 'transition', jsonb_build_array(p_machine, p_entity)::text));
    select c.* into v_known from pgonce.transition_command c
     where c.tenant = v_tenant and c.machine = p_machine and c.command = p_command;
    if found then
        if v_known.digest <> v_digest then
            raise exception 'command "%" of machine "%" was sent before with other content', p_command, p_machine
                using errcode = 'P4080', hint = 'Send the command as it was, or give a new command its own id.';
        end if;
        return query select v_known.outcome::text, false,
            case v_known.outcome when 'applied' then v_known.to_state else v_known.from_state end::text, v_known.version;
        return;
    end if;
    select e.state, e.version into v_now from pgonce.transition_entity e
     where e.tenant = v_tenant and e.machine = p_machine and e.entity = p_entity for no key update;
    select r.* into v_rule from pgonce.transition_rule r
     where r.tenant = '' and r.machine = p_machine and r.from_state = coalesce(v_now.state, '') and r.to_state = p_to;
    if p_expected_state <> coalesce(v_now.state, '') or p_expected_version <> coalesce(v_now.version, 0) then
        v_outcome := case when (p_expected_state <> coalesce(v_before.state, '')) is not true
            and (p_expected_version <> coalesce(v_before.version, 0)) is not true then 'lost_race' else 'stale' end;
    elsif v_rule.machine is null then
        v_outcome := 'incompatible_state';
    elsif v_rule.guard is not null then
        execute format('select %s($1, $2, $3)', v_rule.guard) into v_allowed using v_tenant, p_entity, p_data;
        if v_allowed is not true then
            v_outcome := 'refused';
        end if;
    end if;
    state := coalesce(v_now.state, '');
    version := coalesce(v_now.version, 0);
    if v_outcome = 'applied' then
        version := version + 1;
        insert into pgonce.transition_entity as e (tenant, machine, entity, state, version, since)
        values (v_tenant, p_machine, p_entity, p_to, transition.version, pgonce.now())
        on conflict on constraint one_row_per_entity do update
           set state = excluded.state, version = excluded.version, since = excluded.since;
        if v_rule.topic is not null then
            perform pgonce.publish(v_rule.topic, p_machine || '.' || p_to, p_entity, jsonb_build_object('entity', p_entity,
                'from', transition.state, 'to', p_to, 'version', transition.version, 'command', p_command, 'data', p_data),
                p_tenant => v_tenant);
        end if;
    end if;
    insert into pgonce.transition_command (tenant, machine, command, seq, entity, from_state, to_state, version, outcome, digest,
        data, who, at)
    values (v_tenant, p_machine, p_command, nextval('pgonce.transition_seq'), p_entity, transition.state, p_to, transition.version,
        v_outcome, v_digest, p_data, session_user, pgonce.now());
    if v_outcome = 'applied' then
        state := p_to;
        -- What it waited for in the state that it left is over.
        update pgonce.transition_timer t set ended_at = pgonce.now(), outcome = 'left'
         where t.tenant = v_tenant and t.machine = p_machine and t.entity = p_entity and t.ended_at is null;
    end if;
    outcome := v_outcome;
    made_now := true;
    return next;
end
$$;
