-- pgonce.outbox_backlog: for each subscription how far it is behind, and which relays move it.
-- note     waiting, and what is parked in each state, is counted up to 10000, lane by lane: the index leads to the first ones, whatever the
--          planner takes the log for. A subscription that is behind and has not moved for five minutes
--          is stuck: it holds the log until it moves, or until pgonce.evict_subscription
-- example  select subscription, waiting, oldest_age, dead, stuck from pgonce.outbox_backlog;
create or replace view pgonce.outbox_backlog as
select c.subscription, w.waiting, b.oldest_at, pgonce.now() - b.oldest_at as oldest_age,
       k.delayed, k.retrying, k.dead, k.behind,
       x.lanes_held, x.relays, x.floor, x.advanced_at,
       coalesce(w.waiting > 0 and x.advanced_at < pgonce.now() - interval '5 minutes', false) as stuck,
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
       select count(*) as waiting
         from (select from pgonce.outbox_cursor l cross join lateral (
                    select from pgonce.outbox o
                     where o.lane = l.lane and o.seq > (l.cursor).floor
                       and not pg_visible_in_snapshot(o.xid, (l.cursor).seen)
                       and ((l.cursor).upto is null or o.seq > (l.cursor).after
                            or not pg_visible_in_snapshot(o.xid, (l.cursor).upto))
                       and (c.topics is null or o.topic like any (c.topics))
                       and (c.types is null or o.type like any (c.types))
                       and (c.tenants is null or o.tenant like any (c.tenants))
                     order by o.seq limit 10000) o
                where l.subscription = c.subscription
                limit 10000) w) w
  cross join lateral (
       select min(o.created_at) as oldest_at
         from pgonce.outbox_cursor l cross join lateral (
              select o.created_at from pgonce.outbox o
               where o.lane = l.lane and o.seq > (l.cursor).floor
                 and not pg_visible_in_snapshot(o.xid, (l.cursor).seen)
                 and ((l.cursor).upto is null or o.seq > (l.cursor).after
                      or not pg_visible_in_snapshot(o.xid, (l.cursor).upto))
                 and (c.topics is null or o.topic like any (c.topics))
                 and (c.types is null or o.type like any (c.types))
                 and (c.tenants is null or o.tenant like any (c.tenants))
               order by o.seq limit 1) o
        where l.subscription = c.subscription) b;
