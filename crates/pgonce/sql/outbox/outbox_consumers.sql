-- pgonce.outbox_consumers: every consumer, what it wants and how its troubles are dealt with.
create or replace view pgonce.outbox_consumers as
select c.consumer, pgonce.unglobbed(c.topics) as topics, pgonce.unglobbed(c.types) as types,
       pgonce.unglobbed(c.tenants) as tenants, c.max_attempts, c.backoff, c.backoff_at_most, c.dead_limit,
       c.when_full, c.created_at, c.evicted_at, c.evicted_why
  from pgonce.outbox_consumer c;
