-- Contracts: what scopes, consumers and subscriptions promise, and whether the promises fit together.

-- check: scope-undefined
-- severity: notice
-- title: intents of a scope without a contract of its own
-- why: The contract of scope '*' decides for them: nobody chose how long their answers are kept, what happens to stale leases, or which retries the retention must cover.
with recursive steps (tenant, scope, n) as (
    (select i.tenant, i.scope, 1 from pgonce.intent i order by i.tenant, i.scope limit 1)
    union all
    -- From scope to scope by the primary key: the table may be large.
    select s.* from steps p cross join lateral (
        select i.tenant, i.scope, p.n + 1 from pgonce.intent i
         where (i.tenant, i.scope) > (p.tenant, p.scope) order by i.tenant, i.scope limit 1) s
     where p.n < 1000)
select format('scope %s has intents and no contract', s.scope) as evidence,
       format('select pgonce.define_scope(%L, %L);', s.scope, '7 days') as sql
  from (select distinct p.scope from steps p) s
 where not exists (select from pgonce.scope c where c.scope = s.scope)
 order by 1 limit 20;

-- check: external-takeover
-- severity: warning
-- title: a scope with external effects hands stale leases over
-- why: When a holder vanishes after it called the outside world, the next attempt calls again: the effect happens twice unless the other side deduplicates.
select format('scope %s: boundary external, stale takeover', s.scope) as evidence,
       format('update pgonce.scope set stale = %L where tenant = %L and scope = %L;', 'hold', s.tenant, s.scope) as sql
  from pgonce.scope s where s.boundary = 'external' and s.stale = 'takeover' order by s.scope limit 20;

-- check: horizon-missing
-- severity: warning
-- title: a contract does not state how long duplicates may arrive
-- why: Retention is checked against stated horizons only. A redelivery or a reconciliation after the retention finds nothing and does the work again.
select format('scope %s: %s and %s of zero', s.scope,
           case when s.key_source = 'message' and s.redelivery = interval '0' then 'keys from messages' else 'external effects' end,
           case when s.key_source = 'message' and s.redelivery = interval '0' then 'redelivery' else 'reconciliation' end) as evidence,
       format('update pgonce.scope set %s = retention where tenant = %L and scope = %L;',
           case when s.key_source = 'message' and s.redelivery = interval '0' then 'redelivery' else 'reconciliation' end,
           s.tenant, s.scope) as sql
  from pgonce.scope s
 where s.key_source = 'message' and s.redelivery = interval '0'
    or s.boundary = 'external' and s.reconciliation = interval '0'
 order by s.scope limit 20;

-- check: retention-below-message-redelivery
-- severity: critical
-- title: a scope forgets its keys before brokers stop redelivering
-- why: A message that a broker still redelivers after the answer has expired is a new intent, and has a second effect.
select format('scope %s keeps answers for %s; consumer %s expects redeliveries for %s', s.scope, s.retention, c.consumer, c.redelivery) as evidence,
       format('update pgonce.scope set retention = %L, redelivery = %L where tenant = %L and scope = %L;',
           c.redelivery, c.redelivery, s.tenant, s.scope) as sql
  from pgonce.scope s
  join lateral (select i.consumer, i.redelivery from pgonce.inbox_contract i order by i.redelivery desc limit 1) c on true
 where s.key_source = 'message' and s.retention < c.redelivery
 order by s.scope limit 20;

-- check: inbox-keep-below-outbox
-- severity: warning
-- title: consumers forget messages that the log can still deliver
-- why: A replay of the log hands a consumer events whose markers are gone: they are applied a second time.
select format('the log keeps events for %s; consumer %s remembers them for %s', coalesce(l.max_keep, l.keep), c.consumer, c.keep) as evidence,
       format('update pgonce.inbox_contract set keep = %L where tenant = %L and consumer = %L;',
           coalesce(l.max_keep, l.keep) + interval '1 day', c.tenant, c.consumer) as sql
  from pgonce.outbox_state l join pgonce.inbox_contract c on c.keep < coalesce(l.max_keep, l.keep)
 order by c.consumer limit 20;

-- check: lease-short
-- severity: warning
-- title: a lease is shorter than a usual pause of a process
-- why: A holder that pauses for a second loses its lease and does its work for nothing; another attempt takes over.
select format('scope %s: leases of %s', s.scope, s.lease) as evidence,
       format('update pgonce.scope set lease = %L where tenant = %L and scope = %L;', '30 seconds', s.tenant, s.scope) as sql
  from pgonce.scope s where s.lease < interval '2 seconds' order by s.scope limit 20;

-- check: wait-long
-- severity: warning
-- title: duplicates wait long for an answer
-- why: Each waiting duplicate holds a connection. A burst of retries empties the pool, and the attempt that they wait for may need it.
select format('scope %s: duplicates wait for %s', s.scope, s.wait_timeout) as evidence,
       format('update pgonce.scope set wait_timeout = %L where tenant = %L and scope = %L;', '5 seconds', s.tenant, s.scope) as sql
  from pgonce.scope s where s.busy = 'wait' and s.wait_timeout > interval '30 seconds' order by s.scope limit 20;

-- check: tombstones-unlimited
-- severity: notice
-- title: keys of a scope stay gone without limit
-- why: Each key leaves a row that nothing removes: the table grows for as long as the service runs.
select format('scope %s: after expiry gone, and no tombstone_for', s.scope) as evidence,
       format('update pgonce.scope set tombstone_for = %L where tenant = %L and scope = %L;', '365 days', s.tenant, s.scope) as sql
  from pgonce.scope s where s.after_expiry = 'gone' and s.tombstone_for is null order by s.scope limit 20;
