-- pgonce._require_projection(p_projection, p_tenant): the projection of this name.
-- raises   42704 there is none
create or replace function pgonce._require_projection(p_projection text, p_tenant text default '')
returns pgonce.projection
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_projection pgonce.projection;
begin
    select p.* into v_projection from pgonce.projection p where p.tenant = p_tenant collate "C" and p.projection = p_projection collate "C";
    if not found then
        raise exception 'there is no projection "%"', p_projection using errcode = '42704',
            hint = 'Define it: select pgonce.define_projection(''name'', ''table'', ''function'', ''version'').';
    end if;
    return v_projection;
end
$$;
