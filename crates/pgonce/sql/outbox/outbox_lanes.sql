-- pgonce.outbox_lanes: for each lane of each subscription how far it is behind, and which relay moves it.
-- note     waiting is counted up to 500 for each lane, with filters among its first 1000 unread events, what is parked among the first 10000 of the subscription. The one row of outbox_state is a scalar: as a join the planner takes
--          it for hundreds, and compiling the query takes longer than running it
-- example  select subscription, lane, waiting, relay from pgonce.outbox_lanes;
create or replace view pgonce.outbox_lanes as
select l.subscription, l.lane, b.waiting, b.oldest_at, pgonce.now() - b.oldest_at as oldest_age,
       coalesce(k.parked, 0) as parked, coalesce(k.dead, 0) as dead,
       case when l.lease_until > pgonce.now() then l.owner end as relay, l.lease_until, l.epoch, l.advanced_at
  from pgonce.outbox_cursor l
  join pgonce.outbox_subscription c on c.subscription = l.subscription
  left join (
       select s.subscription, p.lane, count(*) as parked, count(*) filter (where p.state = 'dead') as dead
         from pgonce.outbox_subscription s cross join lateral (
              select p.lane, p.state from pgonce.parked p where p.subscription = s.subscription order by p.seq limit 10000) p
        group by s.subscription, p.lane) k on k.subscription = l.subscription and k.lane = l.lane
  cross join lateral (
       select count(*) as waiting, min(w.created_at) as oldest_at
         from (select o.created_at from (
                      select o.created_at, o.seq, o.topic, o.type, o.tenant from pgonce.outbox o
                       where o.lane = l.lane and o.seq > pgonce._unread_above(l.cursor)
                         and pgonce._is_unread(o.seq, o.xid, l.cursor, (select f.base_seq from pgonce.outbox_state f))
                       order by o.seq limit case when coalesce(c.topics, c.types, c.tenants) is null then 500 else 1000 end) o
                where pgonce._is_wanted(o.topic, o.type, o.tenant, c.topics, c.types, c.tenants)
                order by o.seq limit 500) w) b;
