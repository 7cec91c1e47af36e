-- pgonce.outbox_subscriptions: every subscription, what it wants and how its troubles are dealt with.
create or replace view pgonce.outbox_subscriptions as
select c.subscription, pgonce._glob_patterns(c.topics) as topics, pgonce._glob_patterns(c.types) as types,
       pgonce._glob_patterns(c.tenants) as tenants, c.max_attempts, c.backoff, c.max_backoff, c.dead_limit,
       c.when_full, c.created_at, c.evicted_at, c.evicted_why
  from pgonce.outbox_subscription c;
