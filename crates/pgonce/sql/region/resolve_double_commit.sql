-- pgonce.resolve_double_commit(p_scope, p_key, p_resolution, p_tenant): records what was done about the surplus effects of an
--          intent, in all regions.
-- answers  how many tasks it resolves
-- locks    nothing
-- writes   a fact for each that is open; every region marks its task by it. A row of pgonce.operator_act here
-- raises   22023 no resolution is given
-- example  select pgonce.resolve_double_commit('orders.create', 'order-7', 'ticket 12: second order cancelled');
create or replace function pgonce.resolve_double_commit(p_scope text, p_key text, p_resolution text, p_tenant text default '')
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    if coalesce(btrim(p_resolution), '') = '' then
        raise exception 'a double commit is resolved by saying how' using errcode = '22023', hint = 'Such as a ticket, or the refund''s number.';
    end if;
    insert into pgonce.region_fact (region, epoch, seq, kind, tenant, scope, key, at, expires_at, record)
    select r.id, pgonce._installation_epoch(), nextval('pgonce.region_seq'), 'resolved', t.tenant, t.scope, t.key, pgonce.now(), pgonce.now() + interval '30 days',
           jsonb_build_object('region', t.region, 'epoch', t.epoch, 'seq', t.seq, 'resolution', p_resolution || ' (' || session_user || ')')
      from pgonce.region_task t, pgonce.region r
     where r.is_self and t.resolved_at is null
       and t.tenant = p_tenant collate "C" and t.scope = p_scope collate "C" and t.key = p_key collate "C";
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform pgonce._audit_act('resolve', p_scope, p_key, p_resolution, jsonb_build_object('tasks', v_count), p_tenant);
        perform pgonce._merge_intent(p_tenant, p_scope, p_key);
    end if;
    return v_count;
end
$$;
