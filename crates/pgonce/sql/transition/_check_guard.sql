-- pgonce._check_guard(p_guard): may this guard run with the rights of the command's sender?
-- answers  nothing
-- raises   42883 there is no function of exactly these types; 42501 its owner is neither the owner of pgonce nor a role that could act as the sender anyway
-- note     one role defines transitions and names a function, another sends commands and calls it, with all its rights. So it
--          must belong to somebody who has these rights without it: the sender, a member of the sender's role, a superuser, or
--          the owner of pgonce, whose functions the sender calls already. Asked before each call: the function may have
--          changed since the transition was defined
create or replace function pgonce._check_guard(p_guard text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_owner  oid := (select c.relowner from pg_catalog.pg_class c where c.oid = 'pgonce.intent'::regclass);
    v_author oid := (select f.proowner from pg_catalog.pg_proc f where f.oid = to_regprocedure(p_guard || '(text, text, jsonb)'));
begin
    if v_author is null then
        -- The call would find another function, of whomever.
        raise exception 'there is no function %(text, text, jsonb) that a guard could be', p_guard using errcode = '42883',
            hint = 'Create it again, or define the transition with another guard or with none.';
    elsif not pg_has_role(v_author, v_owner, 'member') and not pg_has_role(v_author, current_user, 'member') then
        raise exception '% is no function that can be a guard for role "%"', p_guard, current_user using errcode = '42501',
            detail = 'A guard runs with the rights of the command''s sender, and belongs to the owner of pgonce, to a superuser, to the sender '
                'or to a member of the sender''s role.',
            hint = format('For example: alter function %s(text, text, jsonb) owner to %I.', p_guard, pg_get_userbyid(v_owner));
    end if;
end
$$;
