-- pgonce.skip(p_subscription, p_seq, p_reason): gives a parked event up for one subscription; what is behind
--          it moves again.
-- answers  true: it was parked
-- locks    the row of its lane: a relay that is recording what came of it goes first
-- writes   deletes the parked row; a row of pgonce.outbox_skipped for deliveries, one of pgonce.operator_act for who and why
-- raises   22023 no reason given
-- note     a delivery that is under way may still arrive: then it is not recorded as skipped. Where it fails it is not tried again
-- example  select pgonce.skip('billing', 7, 'cancelled by the customer');
create or replace function pgonce.skip(p_subscription text, p_seq bigint, p_reason text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_parked pgonce.parked;
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'a skip needs a reason' using errcode = '22023',
            hint = 'Say why this event is never to be delivered; it is kept with your name.';
    end if;
    perform from pgonce.outbox_cursor c
      where c.subscription = p_subscription collate "C"
        and c.lane in (select k.lane from pgonce.parked k where k.subscription = p_subscription collate "C" and k.seq = p_seq)
        for update;
    select k.* into v_parked from pgonce.parked k where k.subscription = p_subscription collate "C" and k.seq = p_seq;
    if not found then
        return false;
    end if;
    perform pgonce._record_skip(v_parked, p_reason);
    perform pgonce._unpark(v_parked);
    perform pgonce._audit_act('skip', 'outbox ' || p_subscription, p_seq::text, p_reason,
        jsonb_build_object('subject', v_parked.subject, 'message_id', v_parked.message_id, 'state', v_parked.state,
            'attempts', v_parked.attempts), v_parked.tenant);
    return true;
end
$$;
