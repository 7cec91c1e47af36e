-- pgonce.outbox_backlog on Citus: as outbox/outbox_backlog.sql; it reads and counts every live job. There are no lanes.
-- note     waiting: ready, or with a relay. stuck: the oldest of these waits for five minutes, and no relay has one
create or replace view pgonce.outbox_backlog as
select s.subscription, n.waiting, n.oldest_at, pgonce.now() - n.oldest_at as oldest_age, n.delayed, n.retrying, n.dead, n.behind,
       0::bigint as lanes_held, n.relays, null::bigint as floor, null::timestamptz as advanced_at,
       coalesce(n.relays = 0 and n.oldest_at < pgonce.now() - interval '5 minutes', false) as stuck, s.evicted_at, s.evicted_why
  from (select x.queue, sum(x.waiting)::bigint as waiting, min(x.oldest_at) as oldest_at, sum(x.delayed)::bigint as delayed,
               sum(x.retrying)::bigint as retrying, sum(x.dead)::bigint as dead, sum(x.behind)::bigint as behind,
               count(distinct x.owner) as relays
          from (select l.queue, l.owner, count(*) filter (where l.state in ('ready', 'running', 'limited')) as waiting,
                       min(j.created_at) filter (where l.state in ('ready', 'running', 'limited')) as oldest_at,
                       count(*) filter (where l.state = 'scheduled') as delayed,
                       count(*) filter (where l.state = 'retrying' and l.due_at is not null) as retrying,
                       count(*) filter (where l.state = 'retrying' and l.due_at is null) as dead,
                       count(*) filter (where l.state = 'blocked') as behind
                  from pgonce.job_live l join pgonce.job j on j.tenant = l.tenant and j.id = l.id
                 where l.queue like 'outbox/%' group by l.queue, l.owner
                union all
                select 'outbox/' || c.subscription, null, 0, null, 0, 0, 0, 0 from pgonce.outbox_subscription c) x
         group by x.queue) n
  join pgonce.outbox_subscription s on n.queue = 'outbox/' || s.subscription;
