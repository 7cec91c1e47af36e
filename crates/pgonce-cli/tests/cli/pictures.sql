-- A day of a small shop, for the pictures of the console.
select pgonce.define_scope('orders.create', '7 days');
select pgonce.define_scope('payments.capture', '30 days', p_stale => 'hold');
select pgonce.define_scope('mail.send', '2 days');

-- One payment: the first worker vanished after it had called the provider, the provider's webhook decided the call, the second finished.
begin;
select pgonce._move_clock('-2 hours');
insert into pgonce.attempt (fence, started_at, ended_at, followed_at, attempt, tenant, scope, key, outcome, owner)
values (2, pgonce.now() - interval '52 seconds', pgonce.now() - interval '22 seconds', pgonce.now() - interval '2 seconds', 1, '', 'payments.capture', 'pay-1042', 'vanished', 'worker-3');
insert into pgonce.external_call (effect_key, fence, requested_at, first_sent_at, sent_at, deadline_at, decided_at, sends, looks, status, decides, tenant, scope, key, step, provider, digest, reference, decided_by)
values ('0190f5a2-7c3e-7000-8000-000000001042', 2, pgonce.now() - interval '51 seconds', pgonce.now() - interval '51 seconds', pgonce.now() - interval '51 seconds', pgonce.now() + interval '1 day',
        pgonce.now() - interval '9 seconds', 1, 2, 'confirmed', false, '', 'payments.capture', 'pay-1042', 'charge', 'acme-pay', '\x01', 'ch_8Q2vT', 'webhook');
select pgonce.publish('payments', 'payment.captured', 'order-1042', '{"amount": 4200}', '0190f5a2-7c3e-7000-8000-0000000010e1');
insert into pgonce.intent (fence, first_at, last_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer, ref_type, ref_id, correlation_id, owner)
values (5, pgonce.now() - interval '52 seconds', pgonce.now(), pgonce.now() + interval '30 days', 2, 'succeeded', '', 'payments.capture', 'pay-1042',
        sha256('pay-1042'), '{"payment": "ch_8Q2vT", "amount": 4200}', 'payment', 'ch_8Q2vT', 'req-77f1', 'worker-1');
insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id)
values (pgonce.now() + interval '1 second', '1970-01-01', '', 'bookkeeping', 'payments', '0190f5a2-7c3e-7000-8000-0000000010e1');
select pgonce._reset_clock();
commit;

insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer)
select 1, now() - n * interval '20 seconds', now() + interval '7 days', 1, 'succeeded', '', 'orders.create', 'order-' || n, '\x02', jsonb_build_object('order', n)
  from generate_series(1, 4211) n;
insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint, owner)
select 2, now() - interval '3 hours', now() - interval '3 hours', now() - interval '2 hours 59 minutes', 1, 'processing', '', 'payments.capture', 'pay-' || 980 + n, '\x02', 'worker-3'
  from generate_series(1, 2) n;
select count(pgonce.publish('orders', 'order.created', 'order-' || n, '{}')) from generate_series(1, 4211) n;
select pgonce.create_subscription('billing', p_from => 'now');
select pgonce.create_subscription('search', p_from => 'now');
select pgonce.create_subscription('warehouse', p_from => 'now');
select count(pgonce.publish('orders', 'order.created', 'order-' || n, '{}')) from generate_series(4212, 4215) n;
update pgonce.outbox_cursor set owner = 'relay-' || 1 + lane % 2, lease_until = now() + interval '1 day', advanced_at = now() - interval '1 second';
insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers, reason)
select '', 'billing', 'order-' || n, n + 1, pgonce._lane_of('', 'order-' || n), 'dead', 10, now() - interval '40 minutes', now() - interval '1 hour', 200, gen_random_uuid(),
       'orders', 'order.created', '{}', '422 unknown currency' from generate_series(1, 3) n;
insert into pgonce.suppressed (tenant, scope, replays, refusals, busy, conflicts)
values ('', 'orders.create', 1834, 12, 44, 3), ('', 'payments.capture', 213, 4, 36, 1), ('', 'mail.send', 77, 2, 0, 0);
insert into pgonce.sample (at, intents, suppressed, events, jobs)
select date_trunc('minute', now()) - n * interval '10 minutes', 100000 - (n * 29 + 420 * sin(n / 17.0))::bigint,
       20000 - (n * 12 + 130 * sin(n / 13.0) + case when n > 40 then 45 else 0 end)::bigint, 0, 0
  from generate_series(0, 150) n;
update pgonce.sweep set swept_at = now() - interval '20 seconds' where name = 'intent';
analyze;
