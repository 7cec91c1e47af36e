-- pgonce._transition on Citus: as transition/_transition.sql; what a statement needs is computed before it.
-- note     commands of an entity are numbered by themselves: sequences differ from server to server, and an entity may move
create or replace function pgonce._transition(p_machine text, p_entity text, p_to text, p_command text, p_expected_state text,
    p_expected_version bigint, p_data jsonb, p_tenant text, p_allowed boolean,
    out outcome text, out made_now boolean, out state text, out version bigint, out guard text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant   text collate "default" := coalesce(p_tenant, '');
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
    v_state    text collate "C";
    v_version  bigint;
    v_outcome  text collate "C";
    v_seq      bigint;
    v_at       timestamptz;
    v_who      text := session_user;
    v_type     text;
    v_event    jsonb;
begin
    if (octet_length(v_machine) between 1 and 200) is not true or (octet_length(v_entity) between 1 and 255) is not true
        or (octet_length(v_to) between 1 and 200) is not true or (octet_length(v_command) between 1 and 255) is not true
    then
        raise exception 'a command names a machine, an entity, a state and itself' using errcode = '22023',
            hint = 'For example transition(''case'', ''7'', ''closed'', ''command-1'').';
    end if;
    -- On this server, which commits it.
    perform pgonce._force_durable_commit();
    -- Where the entity was when the command began.
    select e.* into v_before from pgonce.transition_entity e
     where e.tenant = v_tenant and e.machine = v_machine and e.entity = v_entity;
    -- Commands to one entity take turns, also while it does not exist.
    perform pg_advisory_xact_lock(pgonce._lock_id(v_tenant, 'transition', jsonb_build_array(v_machine, v_entity)::text));
    v_at := pgonce.now();
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
    end if;
    -- By itself: a condition that is known before is left out of a statement, and with it the tenant by which Citus finds a server.
    if v_command ^@ 'timer ' then
        perform 1 from pgonce.transition_timer t
          where t.tenant = v_tenant and t.machine = v_machine and t.entity = v_entity and t.to_state = v_to
            and t.ended_at is null and t.due_at <= v_at and 'timer ' || t.number::text = v_command;
        if not found then
            raise exception 'ids of commands that begin with "timer " belong to timers' using errcode = '22023',
                hint = 'Give the command another id.';
        end if;
    end if;
    select e.* into v_now from pgonce.transition_entity e
     where e.tenant = v_tenant and e.machine = v_machine and e.entity = v_entity for no key update;
    v_state := coalesce(v_now.state, '');
    v_version := coalesce(v_now.version, 0);
    select r.* into v_rule from pgonce.transition_rule r
     where r.tenant = '' and r.machine = v_machine and r.from_state = v_state and r.to_state = v_to;
    if v_expected <> v_state or p_expected_version <> v_version then
        v_outcome := case when (v_expected <> coalesce(v_before.state, '')) is not true
            and (p_expected_version <> coalesce(v_before.version, 0)) is not true then 'lost_race' else 'stale' end;
    elsif v_rule.machine is null then
        v_outcome := 'incompatible_state';
    elsif v_rule.guard is not null and p_allowed is null then
        guard := v_rule.guard;
        return;
    elsif v_rule.guard is not null and not p_allowed then
        v_outcome := 'refused';
    else
        v_outcome := 'applied';
        v_version := v_version + 1;
        insert into pgonce.transition_entity as e (tenant, machine, entity, state, version, since)
        values (v_tenant, v_machine, v_entity, v_to, v_version, v_at)
        on conflict (tenant, machine, entity) do update
           set state = excluded.state, version = excluded.version, since = excluded.since;
        if v_rule.topic is not null then
            v_type := v_machine || '.' || v_to;
            v_event := jsonb_build_object('entity', v_entity, 'from', v_state, 'to', v_to, 'version', v_version, 'command', v_command,
                'data', p_data);
            perform from pgonce._publish_tenant_event(v_rule.topic, v_type, v_entity, v_event, null, '{}', null, v_tenant);
        end if;
    end if;
    select coalesce(max(c.seq), 0) + 1 into v_seq from pgonce.transition_command c
     where c.tenant = v_tenant and c.machine = v_machine and c.entity = v_entity;
    insert into pgonce.transition_command (tenant, machine, command, seq, entity, from_state, to_state, version, outcome, digest,
        data, who, at)
    values (v_tenant, v_machine, v_command, v_seq, v_entity, v_state, v_to, v_version, v_outcome, v_digest, p_data, v_who, v_at)
    on conflict (tenant, machine, command) do nothing;
    if not found then
        -- The lock is that of the entity: another one got this command at the same time.
        raise exception 'command "%" of machine "%" was sent before with other content', v_command, v_machine
            using errcode = 'P4080', hint = 'Send the command as it was, or give a new command its own id.';
    end if;
    -- The timer whose command this is, and what the entity waited for in a state that it left.
    update pgonce.transition_timer t
       set ended_at = v_at, outcome = case when 'timer ' || t.number::text = v_command then v_outcome else 'left' end
     where t.tenant = v_tenant and t.machine = v_machine and t.entity = v_entity and t.ended_at is null
       and (v_outcome = 'applied' or 'timer ' || t.number::text = v_command);
    outcome := v_outcome;
    state := case when v_outcome = 'applied' then v_to else v_state end;
    version := v_version;
    made_now := true;
end
$$;
