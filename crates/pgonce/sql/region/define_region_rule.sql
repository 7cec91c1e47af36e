-- pgonce.define_region_rule(p_scope, p_mode, p_home, p_max_lag, p_tenant): says where the intents of a scope are worked on. It
--          must be the same in every region: pgonce region rule sets it in all of them, and puts it in force.
-- answers  nothing
-- locks    the rule's row
-- writes   one row of pgonce.region_rule; where it changes, one of pgonce.operator_act. Beside other regions it is pending: it forbids at once, and permits nothing until
--          pgonce region rule has seen that every region knows it and work that it forbids has ended
-- raises   22023 an unknown mode, or an interval that is not positive; 42704 there is no such region; P4000 scope missing; 55000 another rule of the
--          scope is pending
-- note     p_mode home: at its home only, others answer P4110 with the home's address; local: anywhere, and what two regions
--          committed is listed in pgonce.double_commits, while the home's last heartbeat is not older than p_max_lag; read_only:
--          as home, without forwarding. p_home: by 'key', by 'tenant', or the name of a region. Scope '*' is for all scopes
--          without a rule; without any it is home by key
-- example  select pgonce.define_region_rule('carts.add', 'local', p_max_lag => '10 seconds');
create or replace function pgonce.define_region_rule(p_scope text, p_mode text, p_home text default 'key',
    p_max_lag interval default null, p_tenant text default '')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
    v_pending boolean := exists (select from pgonce.region r where not r.is_self and r.state <> 'lost');
    v_other   pgonce.region_rule;
    v_before  jsonb;
begin
    if coalesce(p_scope, '') collate "C" = '' then
        raise exception 'the scope is missing' using errcode = 'P4000', hint = 'Name a scope, or ''*'' for all without a rule.';
    end if;
    if p_home collate "C" not in ('key', 'tenant') and exists (select from pgonce.region)
       and not exists (select from pgonce.region r where r.name = p_home collate "C") then
        raise exception 'there is no region "%" that could be a home', p_home using errcode = '42704',
            hint = 'The home is ''key'', ''tenant'', or the name of a region: pgonce region list.';
    end if;
    select r.* into v_other from pgonce.region_rule r
     where r.tenant = p_tenant collate "C" and r.scope = p_scope collate "C" and r.pending and v_pending
       and (r.mode <> p_mode collate "C" or r.home <> p_home collate "C" or r.max_lag is distinct from pgonce._fixed_length(p_max_lag));
    if found then
        raise exception 'another rule of scope "%" is pending: mode %, home %, max_lag %', p_scope, v_other.mode, v_other.home,
            coalesce(v_other.max_lag::text, 'none') using errcode = '55000',
            hint = 'It may be in force in some regions: run pgonce region rule with that one again, and then with this one.';
    end if;
    select jsonb_build_object('rules', jsonb_agg(to_jsonb(r) - 'pending' order by r.pending)) into v_before from pgonce.region_rule r
     where r.tenant = p_tenant collate "C" and r.scope = p_scope collate "C" having count(*) > 0;
    update pgonce.region r set joined_at = r.joined_at where r.is_self;  -- see pgonce._check_region
    insert into pgonce.region_rule as r (tenant, scope, mode, home, max_lag, pending)
    values (p_tenant, p_scope, p_mode, p_home, pgonce._fixed_length(p_max_lag), v_pending)
    on conflict on constraint one_rule_per_scope do update set mode = excluded.mode, home = excluded.home, max_lag = excluded.max_lag;
    perform pgonce._audit_rules('region rule of ' || p_scope, v_before, jsonb_build_object('rules',
        (select jsonb_agg(to_jsonb(r) - 'pending' order by r.pending) from pgonce.region_rule r
          where r.tenant = p_tenant collate "C" and r.scope = p_scope collate "C")), p_tenant => p_tenant);
exception
    when check_violation or not_null_violation then
        raise exception 'there is no such rule of regions: mode %, home %, max_lag %', p_mode, p_home, p_max_lag using errcode = '22023',
            hint = 'mode: home, local, read_only. home: key, tenant, or a region. max_lag: positive, or null for no limit.';
end
$$;
