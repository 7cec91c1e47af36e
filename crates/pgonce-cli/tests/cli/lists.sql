-- Rows for lists: numbers {from} to {to} of intents and events. Three of four intents are in one scope, one in a thousand was tried again,
-- and few failed.
set synchronous_commit = off;
select pgonce._create_outbox_partitions();
insert into pgonce.intent (fence, first_at, last_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer)
select case when n % 1000 = 0 then 2 * n else 1 end, now(), case when n % 1000 = 0 then now() end, now() + interval '1 day', case when n % 1000 = 0 then 3 else 1 end,
       (case when n % 20000 = 7 then 'failed_final' else 'succeeded' end)::pgonce.status, '', case when n % 4 = 0 then 'scope-' || n % 20 else 's' end, 'k' || n,
       '\x02', '{"id": 7}'
  from generate_series({from}, {to}) n;
insert into pgonce.attempt (fence, started_at, ended_at, followed_at, attempt, tenant, scope, key, outcome)
select n, now(), now(), now(), 2, '', case when n % 4 = 0 then 'scope-' || n % 20 else 's' end, 'k' || n, 'failed_retryable'
  from generate_series({from}, {to}) n where n % 1000 = 0;
insert into pgonce.outbox
select e.* from generate_series({from}, {to}) n
 cross join lateral pgonce._event_row('t', 'y', 'u' || n, '{}', null, '{}', null, '', 64) e;
