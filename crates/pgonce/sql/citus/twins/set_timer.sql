-- pgonce.set_timer on Citus: as transition/set_timer.sql, delegated.
create or replace function pgonce.set_timer(p_machine text, p_entity text, p_kind text, p_to text, p_after interval,
    p_tenant text default '')
returns table (made_now boolean, due_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant  text collate "default" := coalesce(p_tenant, '');
    v_machine text collate "C" := p_machine;
    v_entity  text collate "C" := p_entity;
    v_kind    text collate "C" := p_kind;
    v_now     timestamptz;
    v_due     timestamptz;
    v_number  bigint;
begin
    if (octet_length(v_kind) between 1 and 200) is not true or (octet_length(p_to) between 1 and 200) is not true or p_after is null then
        raise exception 'a timer needs a kind, a state and a time' using errcode = '22023', hint = 'For example ''3 days''.';
    end if;
    perform pg_advisory_xact_lock(pgonce._lock_id(v_tenant, 'transition', jsonb_build_array(v_machine, v_entity)::text));
    if not exists (select from pgonce.transition_entity e
        where e.tenant = v_tenant and e.machine = v_machine and e.entity = v_entity)
    then
        raise exception 'there is no entity "%" of machine "%"', v_entity, v_machine using errcode = 'P4081',
            hint = 'Create it first: pgonce.transition.';
    end if;
    perform pgonce._force_durable_commit();
    v_now := pgonce.now();
    v_due := v_now + p_after;
    v_number := nextval('pgonce.transition_seq');
    insert into pgonce.transition_timer as t (tenant, machine, entity, kind, number, to_state, due_at, set_at)
    values (v_tenant, v_machine, v_entity, v_kind, v_number, p_to, v_due, v_now)
    on conflict (tenant, machine, entity, kind) where ended_at is null do nothing;
    made_now := found;
    if not made_now then
        select t.due_at into v_due from pgonce.transition_timer t
         where t.tenant = v_tenant and t.machine = v_machine and t.entity = v_entity and t.kind = v_kind and t.ended_at is null;
    end if;
    due_at := v_due;
    return next;
end
$$;
