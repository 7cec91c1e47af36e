-- pgonce._refuse_bound(p_what): refuses what belongs to all tenants to a session whose role is bound to one.
-- raises   42501 it is bound
create or replace function pgonce._refuse_bound(p_what text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if pgonce._session_tenant() is not null then
        raise exception 'role "%" is bound to a tenant, and % to all of them', session_user, p_what using errcode = '42501',
            hint = 'Do it with a role that is not bound.';
    end if;
end
$$;
