-- pgonce.retry_messages(p_consumer, p_seq, p_reason, p_tenant): retries failed messages: one, or every
--          poison message where p_seq is null, but for those whose id came before with another payload: what
--          came first may have been applied, so that each of them needs a decision of its own.
-- answers  how many
-- locks    their rows
-- writes   status received, due now; a row of pgonce.operator_act for each
-- raises   22023 the payload of the message was cut when it was stored: it can never be applied
-- note     they go on with attempt 2, the rest of the attempts before them: one that was made may have reached the outside world
-- example  select pgonce.retry_messages('billing', p_reason => 'the bank is back');
create or replace function pgonce.retry_messages(p_consumer text, p_seq bigint default null, p_reason text default null,
    p_tenant text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_message pgonce.inbox_message;
    v_count   bigint := 0;
begin
    for v_message in
        select m.* from pgonce.inbox_message m
         where m.consumer = p_consumer collate "C" and (p_tenant is null or m.tenant = p_tenant collate "C")
           and case when p_seq is null then m.status = 'failed_final' and m.skipped_at is null
                       and m.holds_key and octet_length(m.payload) = m.size
                    else m.seq = p_seq and m.status in ('failed_retryable', 'failed_final') end
         order by m.seq for update
    loop
        if octet_length(v_message.payload) < v_message.size then
            raise exception 'message % of consumer "%" was stored with % of its % bytes', v_message.seq, p_consumer,
                octet_length(v_message.payload), v_message.size using errcode = '22023',
                hint = 'It cannot be applied. Skip it, and have the sender send it again under another id.';
        end if;
        perform pgonce._audit_inbox(v_message, 'retry', p_reason);
        update pgonce.inbox_message m
           set status = 'received', attempts = least(m.attempts, 1), due_at = pgonce.now(), skipped_at = null, settled_at = null, holds_key = true
         where m.tenant = v_message.tenant and m.consumer = p_consumer collate "C" and m.seq = v_message.seq;
        v_count := v_count + 1;
    end loop;
    return v_count;
end
$$;
