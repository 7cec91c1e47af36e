-- pgonce._record_skip(p_parked, p_reason): writes down that an event is never delivered to a subscription.
-- writes   one row of pgonce.outbox_skipped
create or replace function pgonce._record_skip(p_parked pgonce.parked, p_reason text)
returns void
language sql volatile
begin atomic
    insert into pgonce.outbox_skipped (tenant, subscription, seq, subject, message_id, topic, type, reason,
        skipped_by, skipped_at)
    values ((p_parked).tenant, (p_parked).subscription, (p_parked).seq, (p_parked).subject, (p_parked).message_id,
        (p_parked).topic, (p_parked).type, left(p_reason, 4000), session_user, pgonce.now())
    on conflict on constraint one_row_per_skipped_event do nothing;
end;
