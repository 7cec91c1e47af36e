-- pgonce._connect_region(p_id, p_conninfo, p_slot): subscribes to the facts of another region, from where the slot stands.
--          Needs the right to create subscriptions: a superuser up to PostgreSQL 15, pg_create_subscription since.
-- writes   the subscription <schema>_region_<this>_<other>, in the place of an earlier one, whose slot is left alone; null
--          connection: only removes it
-- note     durable before it is acknowledged, since a claim may replay it. What others have sent to that region is not
--          asked for: its partition holds its own facts only, and PostgreSQL 16 and later filter by origin as well
create or replace function pgonce._connect_region(p_id smallint, p_conninfo text, p_slot text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
    v_schema text := (select n.nspname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                       where c.oid = 'pgonce.intent'::regclass);
    v_name   text := v_schema || '_region_' || (select r.id from pgonce.region r where r.is_self) || '_' || p_id;
begin
    if exists (select from pg_catalog.pg_subscription s
         where s.subname = v_name and s.subdbid = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())) then
        execute format('alter subscription %I disable', v_name);
        execute format('alter subscription %I set (slot_name = none)', v_name);
        execute format('drop subscription %I', v_name);
    end if;
    -- What was sent meanwhile is missing, until it is copied: pgonce._activate_region.
    update pgonce.region r set beat = null, missed = true where r.id = p_id;
    if p_conninfo is not null then
        execute format('create subscription %I connection %L publication %I with (create_slot = false, slot_name = %L, '
            'copy_data = false, synchronous_commit = on%s)', v_name, p_conninfo, v_schema || '_region', p_slot,
            case when current_setting('server_version_num')::integer >= 160000 then ', origin = none' else '' end);
    end if;
end
$$;
