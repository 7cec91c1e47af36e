-- pgonce._postpone_timer(p_tenant, p_machine, p_entity, p_kind, p_number): lets a timer that failed fire again in a minute.
-- answers  nothing
-- writes   when it is due
create or replace function pgonce._postpone_timer(p_tenant text, p_machine text, p_entity text, p_kind text, p_number bigint)
returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    update pgonce.transition_timer t set due_at = pgonce.now() + interval '1 minute'
     where t.tenant = p_tenant and t.machine = p_machine and t.entity = p_entity and t.kind = p_kind and t.number = p_number
       and t.ended_at is null and t.due_at <= pgonce.now();
end;
