-- pgonce._drop_build(p_projection, p_purpose): gives up a build; the live projection is not touched.
-- answers  true: there was one
-- writes   its table and its gates go
create or replace function pgonce._drop_build(p_projection text, p_purpose text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_fresh text;
begin
    delete from pgonce.projection_build b
     where b.tenant = '' and b.projection = p_projection collate "C" and b.purpose = p_purpose collate "C" returning b.fresh into v_fresh;
    if not found then
        return false;
    end if;
    delete from pgonce.projection_build_gate g where g.projection = p_projection collate "C" and g.purpose = p_purpose collate "C";
    if to_regclass(v_fresh) is not null then
        execute format('drop table %s', to_regclass(v_fresh));
    end if;
    return true;
end
$$;
