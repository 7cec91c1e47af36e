-- 0016_outbox_checks: an application that writes its events by itself cannot write one that stops those who read or count them.
-- breaking: no

alter policy numbered_here on pgonce.outbox
    with check (xid = pg_current_xact_id() and seq = currval('pgonce.outbox_seq')
        and isfinite(created_at) and size >= 0 and lane between 0 and 15 and jsonb_typeof(headers) = 'object');
