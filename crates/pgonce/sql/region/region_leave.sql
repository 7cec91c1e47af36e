-- pgonce.region_leave(p_name): takes a region out: its intents get another home. Of this database itself: it is a single
--          database again. pgonce region leave calls it in every region. Owner only; see pgonce._connect_region.
-- answers  nothing
-- locks    this region: pgonce.intent against everybody, for a moment
-- writes   another region: state lost, and its subscription is removed; its facts stay. This one: everything of regions
--          is removed, with the facts of all; the intents stay. A row of pgonce.operator_act
-- raises   42704 there is no such region; 55P03 the tables are locked for two seconds: the detail says by whom
-- example  begin;
--          select pgonce.region_join(1::smallint, 'eu', 'https://eu.shop.example');
--          select pgonce.region_leave('eu');
--          rollback;
create or replace function pgonce.region_leave(p_name text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
    v_region pgonce.region;
    v_other  pgonce.region;
begin
    select r.* into v_region from pgonce.region r where r.name = p_name collate "C";
    if not found then
        raise exception 'there is no region "%"', coalesce(p_name, 'null') using errcode = '42704', hint = 'pgonce region list shows them.';
    end if;
    perform pgonce._audit_act('leave', 'region ' || p_name, null, null, to_jsonb(v_region));
    if not v_region.is_self then
        perform pgonce._activate_region(v_region.id, 'lost');
        perform pgonce._connect_region(v_region.id, null, null);
        return;
    end if;
    for v_other in select r.* from pgonce.region r where not r.is_self loop
        perform pgonce._connect_region(v_other.id, null, null);
    end loop;
    drop trigger if exists region_facts_are_recorded on pgonce.intent;
    drop trigger if exists region_evictions_are_recorded on pgonce.intent;
    execute format('drop publication if exists %I', (select n.nspname || '_region' from pg_catalog.pg_class c
        join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = 'pgonce.intent'::regclass));
    for v_other in select r.* from pgonce.region r loop
        execute 'drop table if exists pgonce.region_fact_' || v_other.id;
    end loop;
    delete from pgonce.region_pending;
    delete from pgonce.region_rule r where r.pending;
    delete from pgonce.region;
    perform pgonce._set_claim_switch();
    -- Fences of the region are not used again by the single database.
    perform pgonce._begin_epoch(v_region.epoch);
exception when lock_not_available then
    raise exception 'the tables of intents are in use: the region cannot leave' using errcode = '55P03',
        detail = pgonce._holders_of_intents(),
        hint = 'Nothing was changed. Let these transactions end, or end them (pg_terminate_backend), and run it again.';
end
$$;
revoke execute on function pgonce.region_leave(text) from public;
