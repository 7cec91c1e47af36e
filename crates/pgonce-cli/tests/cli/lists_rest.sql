-- All else that lists read, {rows} of each: in most tables few of them need attention.
set synchronous_commit = off;
insert into pgonce.intent (fence, first_at, last_at, lease_until, attempts, status, tenant, scope, key, fingerprint)
select 2, now(), now(), now() - interval '1 hour', 1, 'processing', '', 's', 'stuck' || n, '\x02' from generate_series(1, 200) n;
insert into pgonce.suppressed (tenant, scope, replays) select '', 'scope-' || n, n from generate_series(1, 20) n;
insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, due_at, received_at, settled_at, key, holds_key, headers, payload)
select n, '', case when n % 5 = 0 then 'd' else 'c' end, 'x', n::text, '\x01', 1,
       (case when n % 5 = 0 then 'received' when n <= 200 then 'failed_final' else 'processed' end)::pgonce.inbox_status,
       case when n % 5 = 0 then now() end, now(), case when n % 5 > 0 and n > 200 then now() end, 'key' || n % 100, true, '{}', '\x01'
  from generate_series(1, {rows}) n;
insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id)
select now(), '1970-01-01', '', 'marked', 'x', 'm' || n from generate_series(1, {rows}) n;
insert into pgonce.job (id, created_at, priority, tenant, queue, group_name)
select n, now(), 0, '', 'q', case when n % 2 = 0 then 'g' end from generate_series(1, 3 * {rows}) n;
insert into pgonce.job_end (id, ended_at, status, attempts, tenant, queue, failure_code)
select n, now(), (case when n % 2 = 0 then 'dead' else 'succeeded' end)::pgonce.job_end_status, 3, '', 'q', 'c' || n % 7 from generate_series(1, 2 * {rows}) n;
insert into pgonce.job_live (id, state, priority, tenant, queue, key)
select n, (case when n % 5 = 0 then 'blocked' else 'ready' end)::pgonce.job_state, 0, '', 'q', 'key' || n % 100 from generate_series(2 * {rows} + 1, 3 * {rows}) n;
insert into pgonce.external_call (effect_key, fence, requested_at, first_sent_at, sent_at, deadline_at, status, decides, tenant, scope, key, step, provider, digest)
select md5(n::text)::uuid, 1, now() - n * interval '1 second', now() - interval '2 days', now(), now() - interval '1 day',
       (case when n <= 200 then 'unknown' else 'confirmed' end)::pgonce.external_status, true, '', 's', n::text, 'x', 'p', '\x01' from generate_series(1, {rows}) n;
insert into pgonce.import (tenant, job, number, source, settings, state, runner, backend, leased_until, started_at)
values ('', 'j', 1, 'f', '{}', 'done', gen_random_uuid(), 1, now(), now());
insert into pgonce.import_row select '', 'j', 1, n, n, 'failed', null, null, 'c', 'r' from generate_series(1, {rows}) n;
insert into pgonce.operator_act (acted_at, role, act, tenant, scope, key, reason, forced, before)
select now(), 'x', 'y', '', 's', n::text, 'r', false, '{}' from generate_series(1, {rows}) n;
insert into pgonce.parked (tenant, subscription, subject, seq, lane, state, attempts, parked_at, created_at, size, message_id, topic, type, headers, reason)
select '', 's', 'u' || n, n, pgonce._lane_of('', 'u' || n), case when n <= 200 then 'dead' else 'behind' end, 9, now(), now(), 2, gen_random_uuid(), 't', 'y', '{}', 'r'
  from generate_series(1, {rows}) n;
insert into pgonce.outbox_skipped (tenant, subscription, seq, skipped_at, skipped_by, reason, message_id, topic, type, subject)
select '', 's', n, now(), 'x', 'r', gen_random_uuid(), 't', 'y', 'u' || n from generate_series(1, {rows}) n;
insert into pgonce.ledger_account (tenant, account, shard, shards, currency, normal, head, opened_at, moved_at)
select '', 'a' || n, 0, 1, 'EUR', 'debit', '\x01', now(), now() from generate_series(1, {rows}) n;
insert into pgonce.ledger_group (tenant, source, operation, recorded_at, pending, digest, accounts, amounts)
select '', 'o', n::text, now(), true, '\x01', array['a1', 'a2'], array[1, -1] from generate_series(1, {rows}) n;
insert into pgonce.ledger_pending (tenant, source, operation, fence, pick, state)
select '', 'o', n::text, 1, 0, case when n > {rows} - 200 then 'pending' else 'posted' end from generate_series(1, {rows}) n;
select pgonce.define_queue('none'), pgonce.define_provider('none');
