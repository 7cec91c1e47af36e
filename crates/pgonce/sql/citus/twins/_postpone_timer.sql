-- pgonce._postpone_timer on Citus: as transition/_postpone_timer.sql.
create or replace function pgonce._postpone_timer(p_tenant text, p_machine text, p_entity text, p_kind text, p_number bigint)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text collate "default" := p_tenant;
    v_now    timestamptz := pgonce.now();
begin
    update pgonce.transition_timer t set due_at = v_now + interval '1 minute'
     where t.tenant = v_tenant and t.machine = p_machine collate "C" and t.entity = p_entity collate "C" and t.kind = p_kind collate "C"
       and t.number = p_number and t.ended_at is null and t.due_at <= v_now;
end
$$;
