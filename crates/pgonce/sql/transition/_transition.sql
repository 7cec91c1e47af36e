-- pgonce._transition(as pgonce.transition, p_allowed): decides a command, except for the guard.
-- answers  as pgonce.transition; or only guard, which the caller asks first: then it calls again with its answer in p_allowed
-- locks    as pgonce.transition
-- writes   as pgonce.transition, and the end of the timers that are over; nothing where it answers a guard
-- raises   as pgonce.transition
-- note     with the owner's rights, so that tables change by the rules only; the guard is the user's function and runs with the
--          caller's. It checks what an application does, and is no wall against it: who may call this may pass p_allowed
create or replace function pgonce._transition(p_machine text, p_entity text, p_to text, p_command text, p_expected_state text,
    p_expected_version bigint, p_data jsonb, p_tenant text, p_allowed boolean,
    out outcome text, out made_now boolean, out state text, out version bigint, out guard text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant   text collate "C" := coalesce(p_tenant, '');
    v_machine  text collate "C" := p_machine;
    v_entity   text collate "C" := p_entity;
    v_to       text collate "C" := p_to;
    v_command  text collate "C" := p_command;
    v_expected text collate "C" := p_expected_state;
    v_digest   bytea := sha256(convert_to(jsonb_build_array(p_entity, p_to, p_expected_state, p_expected_version, p_data)::text, 'UTF8'));
    v_before   pgonce.transition_entity;
    v_now      pgonce.transition_entity;
    v_rule     pgonce.transition_rule;
    v_known    pgonce.transition_command;
begin
    if (octet_length(v_machine) between 1 and 200) is not true or (octet_length(v_entity) between 1 and 255) is not true
        or (octet_length(v_to) between 1 and 200) is not true or (octet_length(v_command) between 1 and 255) is not true
    then
        raise exception 'a command names a machine, an entity, a state and itself' using errcode = '22023',
            hint = 'For example transition(''case'', ''7'', ''closed'', ''command-1'').';
    end if;
    perform pgonce._force_durable_commit();
    perform pgonce._check_tenant(v_tenant);
    -- Where the entity was when the command began.
    select e.* into v_before from pgonce.transition_entity e
     where e.tenant = v_tenant and e.machine = v_machine and e.entity = v_entity;
    -- Commands to one entity take turns, also while it does not exist.
    perform pg_advisory_xact_lock(pgonce._lock_id(v_tenant, 'transition', jsonb_build_array(v_machine, v_entity)::text));
    select c.* into v_known from pgonce.transition_command c
     where c.tenant = v_tenant and c.machine = v_machine and c.command = v_command;
    if found then
        if v_known.digest <> v_digest then
            raise exception 'command "%" of machine "%" was sent before with other content', v_command, v_machine
                using errcode = 'P4080', hint = 'Send the command as it was, or give a new command its own id.';
        end if;
        outcome := v_known.outcome;
        made_now := false;
        state := case v_known.outcome when 'applied' then v_known.to_state else v_known.from_state end;
        version := v_known.version;
        return;
    elsif v_command ^@ 'timer ' and not exists (
        select from pgonce.transition_timer t
         where t.tenant = v_tenant and t.machine = v_machine and t.entity = v_entity and t.to_state = v_to
           and t.ended_at is null and t.due_at <= pgonce.now() and 'timer ' || t.number::text = v_command)
    then
        raise exception 'ids of commands that begin with "timer " belong to timers' using errcode = '22023',
            hint = 'Give the command another id.';
    end if;
    select e.* into v_now from pgonce.transition_entity e
     where e.tenant = v_tenant and e.machine = v_machine and e.entity = v_entity for no key update;
    state := coalesce(v_now.state, '');
    version := coalesce(v_now.version, 0);
    select r.* into v_rule from pgonce.transition_rule r
     where r.tenant = '' and r.machine = v_machine and r.from_state = coalesce(v_now.state, '') and r.to_state = v_to;
    if v_expected <> coalesce(v_now.state, '') or p_expected_version <> coalesce(v_now.version, 0) then
        outcome := case when (v_expected <> coalesce(v_before.state, '')) is not true
            and (p_expected_version <> coalesce(v_before.version, 0)) is not true then 'lost_race' else 'stale' end;
    elsif v_rule.machine is null then
        outcome := 'incompatible_state';
    elsif v_rule.guard is not null and p_allowed is null then
        guard := v_rule.guard;
        return;
    elsif v_rule.guard is not null and not p_allowed then
        outcome := 'refused';
    else
        outcome := 'applied';
        version := version + 1;
        insert into pgonce.transition_entity as e (tenant, machine, entity, state, version, since)
        values (v_tenant, v_machine, v_entity, v_to, _transition.version, pgonce.now())
        on conflict on constraint one_row_per_entity do update
           set state = excluded.state, version = excluded.version, since = excluded.since;
        if v_rule.topic is not null then
            perform pgonce.publish(v_rule.topic, v_machine || '.' || v_to, v_entity, jsonb_build_object('entity', v_entity,
                'from', _transition.state, 'to', v_to, 'version', _transition.version, 'command', v_command, 'data', p_data),
                p_tenant => v_tenant);
        end if;
    end if;
    insert into pgonce.transition_command (tenant, machine, command, seq, entity, from_state, to_state, version, outcome, digest,
        data, who, at)
    values (v_tenant, v_machine, v_command, nextval('pgonce.transition_seq'), v_entity, _transition.state, v_to, _transition.version,
        _transition.outcome, v_digest, p_data, session_user, pgonce.now())
    on conflict on constraint one_row_per_command do nothing;
    if not found then
        -- The lock is that of the entity: another one got this command at the same time.
        raise exception 'command "%" of machine "%" was sent before with other content', v_command, v_machine
            using errcode = 'P4080', hint = 'Send the command as it was, or give a new command its own id.';
    end if;
    -- The timer whose command this is, and what the entity waited for in a state that it left.
    update pgonce.transition_timer t
       set ended_at = pgonce.now(), outcome = case when 'timer ' || t.number::text = v_command then _transition.outcome else 'left' end
     where t.tenant = v_tenant and t.machine = v_machine and t.entity = v_entity and t.ended_at is null
       and (_transition.outcome = 'applied' or 'timer ' || t.number::text = v_command);
    if outcome = 'applied' then
        state := v_to;
    end if;
    made_now := true;
end
$$;
