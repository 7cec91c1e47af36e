-- pgonce._own_tenant(): whose what a session keeps is where it names no tenant: the cursors of a consumer.
-- answers  the only tenant that the session may act for; '' where it acts for all
-- note     inlined: nothing where tenants are not isolated
create or replace function pgonce._own_tenant()
returns text
language sql stable parallel safe
return case when pgonce._tenant_is_allowed('') then '' else pgonce._session_tenant() end;
