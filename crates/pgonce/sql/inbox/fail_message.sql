-- pgonce.fail_message(p_consumer, p_seq, p_fence, p_retryable, p_code, p_reason, p_tenant): records that a
--          stored message could not be applied. Call it in a transaction of its own: the one that failed is
--          rolled back.
-- answers  its new status: failed_retryable, due again after a growing pause with jitter, or failed_final
-- locks    the message's row
-- writes   the status and why
-- raises   P4012 another worker holds the message
-- example  select pgonce.store_message('billing', 'shop', 'evt-4', '{"id": 4}');
--          select seq, fence from pgonce.claim_messages('billing', 'host-7', '30 seconds', 1) \gset
--          select pgonce.fail_message('billing', :seq, :fence, true, 'timeout', 'the bank did not answer');
create or replace function pgonce.fail_message(p_consumer text, p_seq bigint, p_fence bigint, p_retryable boolean,
    p_code text, p_reason text, p_tenant text default '')
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules  pgonce.inbox_contract := pgonce._inbox_rules(p_consumer, p_tenant);
    v_status pgonce.inbox_status;
begin
    update pgonce.inbox_message m
       set status = case when p_retryable and m.attempts < v_rules.max_attempts then 'failed_retryable'
                         else 'failed_final' end::pgonce.inbox_status,
           due_at = case when p_retryable and m.attempts < v_rules.max_attempts
                         then pgonce.now() + pgonce._retry_delay(v_rules, m.attempts) end,
           owner = null, failure_code = p_code, failure_message = left(p_reason, 4000)
     where m.tenant = p_tenant collate "C" and m.consumer = p_consumer collate "C" and m.seq = p_seq and m.fence = p_fence
       and m.status = 'processing'
    returning m.status into v_status;
    if not found then
        raise exception 'fence % does not hold message % of consumer "%"', p_fence, p_seq, p_consumer
            using errcode = 'P4012', hint = 'Let it be: another worker has it, or has applied it.';
    end if;
    return v_status::text;
end
$$;
