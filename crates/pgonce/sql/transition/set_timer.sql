-- pgonce.set_timer(p_machine, p_entity, p_kind, p_to, p_after, p_tenant): starts a timer that moves an entity
--          when it is due, unless one of this kind is active.
-- answers  one row: made_now true, it was started; false, one is active; and when that one is due
-- locks    commands to the entity
-- writes   at most one row of pgonce.transition_timer
-- raises   22023 a bad name, or no time; P4081 the entity does not exist; 42501 the session's role is bound to another tenant
-- note     a timer ends when its entity leaves its state. pgonce.fire_timers lets due ones fire
-- example  select pgonce.define_transition('sla', '', 'waiting'), pgonce.define_transition('sla', 'waiting', 'overdue');
--          select * from pgonce.transition('sla', 'case 7', 'waiting', 'c-1');
--          select * from pgonce.set_timer('sla', 'case 7', 'answer', 'overdue', '3 days');
create or replace function pgonce.set_timer(p_machine text, p_entity text, p_kind text, p_to text, p_after interval,
    p_tenant text default '')
returns table (made_now boolean, due_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant  text collate "C" := coalesce(p_tenant, '');
    v_machine text collate "C" := p_machine;
    v_entity  text collate "C" := p_entity;
    v_kind    text collate "C" := p_kind;
begin
    if (octet_length(v_kind) between 1 and 200) is not true or (octet_length(p_to) between 1 and 200) is not true or p_after is null then
        raise exception 'a timer needs a kind, a state and a time' using errcode = '22023', hint = 'For example ''3 days''.';
    end if;
    perform pgonce._force_durable_commit();
    perform pgonce._check_tenant(v_tenant);
    perform pg_advisory_xact_lock(pgonce._lock_id(v_tenant, 'transition', jsonb_build_array(v_machine, v_entity)::text));
    if not exists (select from pgonce.transition_entity e
        where e.tenant = v_tenant and e.machine = v_machine and e.entity = v_entity)
    then
        raise exception 'there is no entity "%" of machine "%"', v_entity, v_machine using errcode = 'P4081',
            hint = 'Create it first: pgonce.transition.';
    end if;
    insert into pgonce.transition_timer as t (tenant, machine, entity, kind, number, to_state, due_at, set_at)
    values (v_tenant, v_machine, v_entity, v_kind, nextval('pgonce.transition_seq'), p_to, pgonce.now() + p_after, pgonce.now())
    on conflict (tenant, machine, entity, kind) where ended_at is null do nothing
    returning t.due_at into due_at;
    made_now := found;
    if not made_now then
        select t.due_at into due_at from pgonce.transition_timer t
         where t.tenant = v_tenant and t.machine = v_machine and t.entity = v_entity and t.kind = v_kind and t.ended_at is null;
    end if;
    return next;
end
$$;
