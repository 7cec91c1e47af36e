-- pgonce._audit_inbox(p_message, p_act, p_reason): records what an operator did to a stored message.
-- writes   a row of pgonce.operator_act, whose scope is "inbox " and the consumer, and whose key is the message's number; with how the
--          message was before
create or replace function pgonce._audit_inbox(p_message pgonce.inbox_message, p_act text, p_reason text)
returns void
language sql volatile
return pgonce._audit_act(p_act, 'inbox ' || (p_message).consumer, (p_message).seq::text, p_reason,
    jsonb_strip_nulls(jsonb_build_object('status', (p_message).status, 'attempts', (p_message).attempts,
        'failure_code', (p_message).failure_code, 'failure_message', (p_message).failure_message)), (p_message).tenant);
