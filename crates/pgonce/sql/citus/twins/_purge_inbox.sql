-- pgonce._purge_inbox on Citus: as inbox/_purge_inbox.sql for markers, each tenant's on the server that has them.
-- note     it finds consumers by reading every shard: run it seldom
create or replace function pgonce._purge_inbox(p_limit integer default 10000)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_of       record;
    v_tenant   text;  -- without the collation of its column, which Citus would take for another tenant
    v_consumer text;
    v_since    timestamptz;
    v_done     bigint := 0;
    v_count    bigint;
begin
    if p_limit is null or p_limit < 1 then
        raise exception 'pgonce._purge_inbox needs a positive limit, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Call it again and again with a limit such as 10000.';
    end if;
    for v_of in
        select m.tenant, m.consumer, min(m.accepted_at) as oldest from pgonce.inbox_marker m group by m.tenant, m.consumer
    loop
        exit when v_done >= p_limit;
        v_tenant := v_of.tenant;
        v_consumer := v_of.consumer;
        v_since := pgonce._kept_since(v_consumer, v_tenant);
        continue when v_of.oldest >= v_since;
        select n into v_count from pgonce._purge_markers(v_consumer, v_since, (p_limit - v_done)::integer, v_tenant) n;
        v_done := v_done + v_count;
    end loop;
    return v_done;
end
$$;
