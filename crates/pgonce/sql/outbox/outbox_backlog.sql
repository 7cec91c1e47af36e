-- pgonce.outbox_backlog: for each subscription how far it is behind, and which relays move it.
-- note     waiting, and what is parked in each state, is counted up to 10000, lane by lane: the index leads to the first ones, whatever the
--          planner takes the log for. Where a subscription has filters, waiting and oldest_at are those of the first 500 unread events of
--          each lane: what it does not want is read too, and there may be millions. A subscription that is behind, be it behind events
--          that it does not want, and has not moved for five minutes is stuck: it holds the log until it moves, or until
--          pgonce.evict_subscription. Limits that are no constants lead the planner to the index also while the log is short
-- example  select subscription, waiting, oldest_age, dead, stuck from pgonce.outbox_backlog;
create or replace view pgonce.outbox_backlog as
select c.subscription, w.waiting, b.oldest_at, pgonce.now() - b.oldest_at as oldest_age,
       k.delayed, k.retrying, k.dead, k.behind,
       x.lanes_held, x.relays, x.floor, x.advanced_at,
       coalesce(u.behind and x.advanced_at < pgonce.now() - interval '5 minutes', false) as stuck,
       c.evicted_at, c.evicted_why
  from pgonce.outbox_subscription c
  cross join lateral (
       select count(*) filter (where l.lease_until > pgonce.now()) as lanes_held,
              count(distinct l.owner) filter (where l.lease_until > pgonce.now()) as relays,
              min((l.cursor).floor) as floor, min(l.advanced_at) as advanced_at
         from pgonce.outbox_cursor l where l.subscription = c.subscription) x
  cross join lateral (
       select count(*) filter (where p.state = 'delayed') as delayed,
              count(*) filter (where p.state = 'retry') as retrying,
              count(*) filter (where p.state = 'dead') as dead,
              count(*) filter (where p.state = 'behind') as behind
         from unnest(array['delayed', 'retry', 'dead', 'behind']) s (state)
        cross join lateral (
              select p.state from pgonce.parked p
               where p.subscription = c.subscription and p.state = s.state limit 10000) p) k
  cross join lateral (
       select exists (
              select from pgonce.outbox_cursor l cross join lateral (
                     select from pgonce.outbox o
                      where o.lane = l.lane and o.seq > pgonce._unread_above(l.cursor)
                        and pgonce._is_unread(o.seq, o.xid, l.cursor, (select f.base_seq from pgonce.outbox_state f))
                      order by o.seq limit 1) o
               where l.subscription = c.subscription) as behind) u
  cross join lateral (
       select count(*) as waiting
         from (select from pgonce.outbox_cursor l cross join lateral (
                    select o.topic, o.type, o.tenant from pgonce.outbox o
                     where o.lane = l.lane and o.seq > pgonce._unread_above(l.cursor)
                       and pgonce._is_unread(o.seq, o.xid, l.cursor, (select f.base_seq from pgonce.outbox_state f))
                     order by o.seq
                     limit case when coalesce(c.topics, c.types, c.tenants) is null then 10000 else 500 end) o
                where l.subscription = c.subscription
                  and pgonce._is_wanted(o.topic, o.type, o.tenant, c.topics, c.types, c.tenants)
                limit 10000) w) w
  cross join lateral (
       select min(o.created_at) as oldest_at
         from pgonce.outbox_cursor l cross join lateral (
              select o.created_at from (
                     select o.created_at, o.seq, o.topic, o.type, o.tenant from pgonce.outbox o
                      where o.lane = l.lane and o.seq > pgonce._unread_above(l.cursor)
                        and pgonce._is_unread(o.seq, o.xid, l.cursor, (select f.base_seq from pgonce.outbox_state f))
                      order by o.seq limit case when coalesce(c.topics, c.types, c.tenants) is null then 1 else 500 end) o
               where pgonce._is_wanted(o.topic, o.type, o.tenant, c.topics, c.types, c.tenants)
               order by o.seq limit 1) o
        where l.subscription = c.subscription) b;
