-- pgonce.revoke_from(p_role, p_part): takes one part of pgonce's work from a role, or all of them where p_part is left out.
--          Owner only.
-- answers  true: it had it
-- locks    the catalogue rows of what it revokes; callers take turns
-- writes   deletes rows of pgonce.role_grant; revokes; a row of pgonce.operator_act
-- raises   42704 there is no such role
-- example  create role pgonce_leaver;
--          select pgonce.grant_to('pgonce_leaver', 'app');
--          select pgonce.revoke_from('pgonce_leaver', 'app');
create or replace function pgonce.revoke_from(p_role name, p_part text default null)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_had boolean;
begin
    delete from pgonce.role_grant g where g.role = p_role collate "C" and (p_part is null or g.part = p_part collate "C");
    v_had := found;
    if v_had then
        perform pgonce._audit_act('revoke', 'role ' || p_role, p_part, null);
    end if;
    perform pgonce._apply_grants(p_role);
    return v_had;
end
$$;
revoke execute on function pgonce.revoke_from(name, text) from public;
