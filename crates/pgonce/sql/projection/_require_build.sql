-- pgonce._require_build(p_projection, p_purpose): the build of this projection, which is locked until the end of the
--          transaction.
-- raises   42704 there is none
create or replace function pgonce._require_build(p_projection text, p_purpose text)
returns pgonce.projection_build
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_build pgonce.projection_build;
begin
    select b.* into v_build from pgonce.projection_build b
     where b.tenant = '' and b.projection = p_projection collate "C" and b.purpose = p_purpose collate "C" for update;
    if not found then
        raise exception 'projection "%" is not being built', p_projection using errcode = '42704',
            hint = 'Begin with pgonce._begin_build(''name'', ''rebuild''), or ''verify''.';
    end if;
    return v_build;
end
$$;
