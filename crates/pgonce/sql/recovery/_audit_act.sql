-- pgonce._audit_act(p_act, p_part, p_subject, p_reason, p_before, p_tenant): records what an operator did to something that
--          is not an intent.
-- writes   a row of pgonce.operator_act, whose scope names the part, such as "outbox billing", and whose key its subject
create or replace function pgonce._audit_act(p_act text, p_part text, p_subject text, p_reason text, p_before jsonb default '{}',
    p_tenant text default '')
returns void
language sql volatile
begin atomic
    insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
    values (pgonce.now(), session_user, p_act, coalesce(p_tenant, ''), p_part, coalesce(p_subject, '*'),
        left(coalesce(p_reason, ''), 4000), false, p_before);
end;
