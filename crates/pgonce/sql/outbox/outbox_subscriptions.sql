-- pgonce.outbox_subscriptions: every subscription, its filters and how its failures are handled.
-- example  select subscription, topics, max_attempts, evicted_why from pgonce.outbox_subscriptions;
create or replace view pgonce.outbox_subscriptions as
select c.subscription, pgonce._glob_patterns(c.topics) as topics, pgonce._glob_patterns(c.types) as types,
       pgonce._glob_patterns(c.tenants) as tenants, c.max_attempts, c.backoff, c.max_backoff, c.dead_limit,
       c.when_full, c.created_at, c.evicted_at, c.evicted_why
  from pgonce.outbox_subscription c;
