-- pgonce._audit_inbox(p_message, p_act, p_reason): records what an operator did to a stored message.
-- writes   one row of pgonce.inbox_audit, with how the message was before
create or replace function pgonce._audit_inbox(p_message pgonce.inbox_message, p_act text, p_reason text)
returns void
language sql volatile
begin atomic
    insert into pgonce.inbox_audit (tenant, consumer, seq, entry, at, who, act, reason, status, attempts,
        failure_code, failure_message)
    values ((p_message).tenant, (p_message).consumer, (p_message).seq, nextval('pgonce.inbox_seq'), pgonce.now(),
        session_user, p_act, left(p_reason, 4000), (p_message).status, (p_message).attempts,
        (p_message).failure_code, (p_message).failure_message);
end;
