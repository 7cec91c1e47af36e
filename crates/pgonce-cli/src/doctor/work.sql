-- Work: what stands still, what needs manual action, what housekeeping did not do.

-- check: stuck-needs-action
-- severity: critical
-- title: leased work stopped and needs manual action
-- why: The holder vanished and the contract forbids another attempt. Clients get "busy" or a refusal until somebody finds out whether it happened.
select format('%s in scope %s, the oldest for %s', case when s.n = 1000 then '1000 or more' else s.n::text end, s.scope, date_trunc('second', s.longest)) as evidence,
       format('pgonce intent stuck; then pgonce intent settle|fail|release %s KEY --reason WHY', quote_literal(s.scope)) as command
  from (select k.scope, count(*) as n, max(k.stuck_for) as longest
          from (select * from pgonce.stuck k where k.classification in ('needs_manual_action', 'abandoned', 'needs_probe') and k.stuck_for > interval '1 minute' limit 1000) k
         group by k.scope) s order by 1 limit 20;

-- check: stuck-not-retried
-- severity: warning
-- title: unfinished work that nobody tries again
-- why: It may be retried safely, and for an hour nobody did: the caller has given up, or never learned the outcome.
select format('%s in scope %s, the oldest for %s', case when s.n = 1000 then '1000 or more' else s.n::text end, s.scope, date_trunc('second', s.longest)) as evidence,
       'pgonce intent stuck; then send the requests again, or settle them' as command
  from (select k.scope, count(*) as n, max(k.stuck_for) as longest
          from (select * from pgonce.stuck k where k.classification = 'safe_to_retry' and k.stuck_for > interval '1 hour' limit 1000) k
         group by k.scope) s order by 1 limit 20;

-- check: purge-behind
-- severity: warning
-- title: expired records are not purged
-- why: The table grows without bound, and with it every backup, every vacuum and every look-up that misses the cache.
select format('records expired more than a day ago; the last sweep was %s', coalesce(date_trunc('second', w.swept_at)::text, 'never')) as evidence,
       'pgonce purge --all; then run it every few minutes' as command,
       'select pgonce.purge(10000);' as sql
  from pgonce.sweep w
 where w.tenant = '' and w.name = 'intent' and coalesce(w.swept_at < pgonce.now() - interval '1 day', true)
   -- Rows are filled in from the front: the oldest are among the first.
   and exists (select from (select i.expires_at from pgonce.intent i limit 10000) o where o.expires_at < pgonce.now() - interval '1 day');

-- check: outbox-no-relay
-- severity: critical
-- title: events wait and no relay delivers them
-- why: Everything that follows from committed effects stands still, and the log cannot be shortened.
select format('subscription %s: %s waiting, the oldest for %s', b.subscription, case when b.waiting = 10000 then '10000 or more' else b.waiting::text end,
           date_trunc('second', b.oldest_age)) as evidence,
       format('pgonce relay --subscription %s --sink URL', quote_literal(b.subscription)) as command
  from pgonce.outbox_backlog b
 where b.evicted_at is null and b.waiting > 0 and b.lanes_held = 0 and b.oldest_age > interval '1 minute' order by 1 limit 20;

-- check: outbox-stuck
-- severity: critical
-- title: a relay holds lanes and delivers nothing
-- why: Its sink is down or refuses everything. Events pile up, and the log cannot be shortened.
select format('subscription %s: %s waiting, no progress since %s', b.subscription, b.waiting, date_trunc('second', b.advanced_at)) as evidence,
       format('pgonce outbox status; look at the log of the relay of %s', b.subscription) as command
  from pgonce.outbox_backlog b where b.stuck and b.evicted_at is null and b.lanes_held > 0 order by 1 limit 20;

-- check: dead-letters
-- severity: warning
-- title: events were given up
-- why: A dead letter holds back every later event of its subject until it is redriven or skipped.
select format('subscription %s: %s dead, %s behind them', b.subscription, b.dead, b.behind) as evidence,
       format('pgonce outbox list %1$s; then pgonce outbox redrive %1$s', quote_literal(b.subscription)) as command,
       format('select pgonce.redrive(%L);', b.subscription) as sql
  from pgonce.outbox_backlog b where b.dead > 0 order by 1 limit 20;

-- check: dead-letters-full
-- severity: critical
-- title: a subscription has almost no room for more dead letters
-- why: When it is full its lanes stop, or, where it discards, events are lost.
select format('subscription %s: %s of %s; when full: %s', b.subscription, b.dead, s.dead_limit, s.when_full) as evidence,
       format('select pgonce.alter_subscription(%L, p_dead_limit => %s);', b.subscription, 2 * s.dead_limit) as sql
  from pgonce.outbox_backlog b join pgonce.outbox_subscription s on s.subscription = b.subscription
 where s.dead_limit > 0 and b.dead >= 0.8 * s.dead_limit order by 1 limit 20;

-- check: subscription-evicted
-- severity: warning
-- title: a subscription was evicted
-- why: It no longer holds the log, so it gets none of the events since; its readers know nothing of them.
select format('subscription %s, since %s: %s', b.subscription, date_trunc('second', b.evicted_at), b.evicted_why) as evidence,
       format('select pgonce.drop_subscription(%L);', b.subscription) as sql
  from pgonce.outbox_backlog b where b.evicted_at is not null order by 1 limit 20;

-- check: outbox-partitions-missing
-- severity: warning
-- title: the log has no partitions ahead
-- why: New events go to the default partition, which is never dropped as a whole: it grows, and walking it slows the relays.
select format('the last number is %s, the last partition ends at %s, %s', coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0), p.upto,
           case when exists (select from pg_constraint k where k.conrelid = 'pgonce.outbox_default'::regclass and k.conname ~ '^below_')
                   then 'and the next is being attached in steps: call it again'
                when exists (select from pgonce.outbox_default) then 'and the default partition has rows' else 'the default partition is empty' end) as evidence,
       'select pgonce._create_outbox_partitions();' as sql
  from (select max(o.to_seq) as upto from pgonce.outbox_partition o) p
 where coalesce(p.upto, 0) <= coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0) + 1000
    or exists (select from pgonce.outbox_default);

-- check: inbox-partitions-missing
-- severity: warning
-- title: recent markers have no partition of their day
-- why: They are removed row by row instead of by partition, which costs vacuum and time.
select format('%s recent markers in inbox_marker_default', count(*)) as evidence,
       'select pgonce._create_inbox_partitions();' as sql
  from (select d.day from pgonce.inbox_marker_default d where d.day >= (pgonce.now() at time zone 'UTC')::date - 1 limit 10000) d
having count(*) > 0 and to_regclass('pgonce.tenant_epoch') is null;

-- check: inbox-poison
-- severity: warning
-- title: messages that no consumer could apply
-- why: A poison message holds back every later message of its key until it is retried or skipped.
select format('consumer %s: %s poison, %s held behind them', b.consumer, sum(b.poison), sum(b.held)) as evidence,
       format('pgonce inbox list %1$s --status failed_final; then pgonce inbox retry %1$s SEQ or pgonce inbox skip %1$s SEQ', quote_literal(b.consumer)) as command
  from pgonce.inbox_backlog b group by b.consumer having sum(b.poison) > 0 order by 1 limit 20;

-- check: inbox-behind
-- severity: critical
-- title: stored messages wait and nobody applies them
-- why: They were acknowledged to their sender, who will not send them again.
select format('consumer %s: %s waiting, the oldest for %s', b.consumer, sum(b.received + b.retrying), date_trunc('second', max(b.oldest_age))) as evidence,
       format('start the consumer %s', b.consumer) as command
  from pgonce.inbox_backlog b where b.received + b.retrying > 0 and b.oldest_age > interval '1 hour'
 group by b.consumer order by 1 limit 20;

-- check: timers-overdue
-- severity: warning
-- title: timers are due and nobody fires them
-- why: Transitions that depend on time do not happen.
select format('machine %s: %s timers, the oldest due since %s', t.machine, count(*), date_trunc('second', min(t.due_at))) as evidence,
       'select pgonce.fire_timers(1000);' as sql
  from (select d.machine, d.due_at from pgonce.transition_timer d where d.ended_at is null order by d.due_at limit 1000) t
 where t.due_at < pgonce.now() - interval '10 minutes' group by t.machine order by 1 limit 20;

-- check: projection-build-abandoned
-- severity: warning
-- title: a rebuild of a projection never ended
-- why: Its tables take room, and the projection cannot be built again before they are dropped.
select format('projection %s: %s since %s', b.projection, b.purpose, date_trunc('second', b.started_at)) as evidence,
       format('pgonce projection rebuild %s', quote_literal(b.projection)) as command
  from pgonce.projection_build b where b.started_at < pgonce.now() - interval '1 day' order by 1 limit 20;

-- check: growth-ahead
-- severity: notice
-- title: at its present rate a table becomes far larger
-- why: Disk, backups and vacuum must grow with it, or records must be kept for less time.
select format('%s: %s now, %s a day, %s in 30 days', f.what, pg_size_pretty(f.bytes), pg_size_pretty(f.bytes_per_day), pg_size_pretty(f.bytes_then)) as evidence,
       'pgonce forecast; then more disk, or a shorter retention: pgonce scope define, pgonce outbox retention' as command
  from {forecast} f where f.bytes_then > 10 * 1024 ^ 3 and f.bytes_then > 3 * f.bytes order by 1;
