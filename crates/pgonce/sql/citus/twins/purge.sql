-- pgonce.purge on Citus: as retention/purge.sql, tenant by tenant, each on the server that has its rows.
-- raises   P4105 where a reason is given: acts of operators are not recorded on Citus
-- note     it finds tenants by reading every shard: run it seldom
create or replace function pgonce.purge(p_limit integer default 10000, p_reason text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now    timestamptz := pgonce.now();
    v_tenant text;
    v_done   bigint := 0;
    v_count  bigint;
begin
    if p_limit is null or p_limit < 1 then
        raise exception 'pgonce.purge needs a positive limit, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Call it again and again with a limit such as 10000.';
    end if;
    for v_tenant in select i.tenant from pgonce.intent i where i.expires_at <= v_now group by i.tenant limit 100 loop
        exit when v_done >= p_limit;
        select n into v_count from pgonce._purge_tenant((p_limit - v_done)::integer, v_tenant) n;
        v_done := v_done + v_count;
    end loop;
    if p_reason is not null then
        perform pgonce._audit_act('purge', 'intents', null, p_reason, jsonb_build_object('removed', v_done));
    end if;
    return v_done;
end
$$;
