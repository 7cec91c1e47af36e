-- pgonce.skip_message(p_consumer, p_seq, p_reason, p_tenant): gives a stored message up; what waits behind it
--          moves again.
-- answers  true: it was stored, neither applied nor skipped, and no worker had it
-- locks    its row
-- writes   failed_final and skipped; a row of pgonce.operator_act records who and why
-- raises   22023 no reason given
-- example  select pgonce.skip_message('billing', 7, 'a test message');
create or replace function pgonce.skip_message(p_consumer text, p_seq bigint, p_reason text, p_tenant text default null)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_message pgonce.inbox_message;
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'a skip needs a reason' using errcode = '22023',
            hint = 'Say why this message is never to be applied; it is kept with your name.';
    end if;
    select m.* into v_message from pgonce.inbox_message m
     where m.consumer = p_consumer collate "C" and m.seq = p_seq and (p_tenant is null or m.tenant = p_tenant collate "C")
       and m.skipped_at is null and m.status in ('received', 'failed_retryable', 'failed_final')
       for update;
    if not found then
        return false;
    end if;
    perform pgonce._audit_inbox(v_message, 'skip', p_reason);
    update pgonce.inbox_message m
       set status = 'failed_final', due_at = null, skipped_at = pgonce.now(), settled_at = pgonce.now()
     where m.tenant = v_message.tenant and m.consumer = p_consumer collate "C" and m.seq = p_seq;
    return true;
end
$$;
