-- pgonce._add_region(p_id, p_name, p_address, p_is_self): writes down a region, and prepares for its facts. Owner only.
-- answers  the highest epoch of that region that this database knows of
-- locks    the table of facts, exclusively, for a moment
-- writes   pgonce.region; the partition of its facts, with triggers where it is another region's
-- raises   22023 a bad name or number; 55000 the number or the name is another region's; 55P03 the tables are locked for two
--          seconds: the detail says by whom
create or replace function pgonce._add_region(p_id smallint, p_name text, p_address text, p_is_self boolean default false)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '2s'
as $$
declare
    v_table text := 'pgonce.region_fact_' || p_id;
begin
    if (p_id between 1 and 63 and octet_length(p_name) between 1 and 63 and p_name collate "C" not in ('key', 'tenant')) is not true then
        raise exception 'a region needs a number from 1 to 63 and a name of at most 63 bytes' using errcode = '22023',
            hint = 'For example 1 and ''eu''; ''key'' and ''tenant'' have another meaning.';
    elsif exists (select from pgonce.region r where (r.id = p_id) <> (r.name = p_name collate "C") or r.id = p_id and r.is_self <> p_is_self
                  or p_is_self and r.is_self and r.id <> p_id) then
        raise exception 'region % "%" is not the one that is known here', p_id, p_name using errcode = '55000',
            detail = (select string_agg(format('%s "%s"%s', r.id, r.name, case when r.is_self then ', this one' else '' end), '; '
                order by r.id) from pgonce.region r),
            hint = 'A number and a name stand for one region, for as long as any of its facts are kept.';
    end if;
    insert into pgonce.region (id, name, address, is_self, joined_at)
    values (p_id, p_name, coalesce(p_address, ''), p_is_self, pgonce.now())
    on conflict on constraint one_row_per_region do update set address = excluded.address, joined_at = excluded.joined_at;
    if to_regclass(v_table) is null then
        execute format('create table %s partition of pgonce.region_fact for values in (%s)', v_table, p_id);
    end if;
    if not p_is_self then
        execute format('create or replace trigger facts_land_once before insert on %s for each row execute function pgonce._land_fact()', v_table);
        execute format('create or replace trigger facts_are_merged after insert on %s for each row execute function pgonce._land_fact()', v_table);
        -- Also where replication applies them.
        execute format('alter table %s enable always trigger facts_land_once, enable always trigger facts_are_merged', v_table);
    end if;
    return (select greatest(max(r.epoch), (select max(f.epoch) from pgonce.region_fact f where f.region = p_id))
              from pgonce.region r where r.id = p_id);
exception when lock_not_available then
    raise exception 'the tables of intents are in use: a region cannot be added' using errcode = '55P03',
        detail = pgonce._holders_of_intents(),
        hint = 'Nothing was changed. Let these transactions end, or end them (pg_terminate_backend), and run it again.';
end
$$;
