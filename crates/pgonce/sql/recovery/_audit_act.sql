-- pgonce._audit_act(p_act, p_part, p_subject, p_reason, p_before, p_tenant, p_person, p_forced): records what an operator did, to
--          whatever part.
-- writes   a row of pgonce.operator_act, whose scope names the part, such as "outbox billing", and whose key its subject; for an
--          intent they are its own
-- note     who: the role of the session, and the person: p_person, or the one that the setting pgonce.person names. The console sets
--          it to who signed in, the program to the user of the operating system, each for the transaction of the act only. It has this name in every schema
create or replace function pgonce._audit_act(p_act text, p_part text, p_subject text, p_reason text, p_before jsonb default '{}',
    p_tenant text default '', p_person text default null, p_forced boolean default false)
returns void
language sql volatile
begin atomic
    insert into pgonce.operator_act (acted_at, role, person, act, tenant, scope, key, reason, forced, before)
    values (pgonce.now(), session_user, left(coalesce(p_person, nullif(current_setting('pgonce' || '.person', true), '')), 255), p_act,
        coalesce(p_tenant, ''), p_part, coalesce(p_subject, '*'), left(coalesce(p_reason, ''), 4000), p_forced, p_before);
end;
