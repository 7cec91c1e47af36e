-- pgonce.outbox_lanes: for each lane of each subscription how far it is behind, and which relay moves it.
-- note     waiting is counted up to 10000 for each lane. The one row of outbox_state is a scalar: as a join the planner takes
--          it for hundreds, and compiling the query takes longer than running it
-- example  select subscription, lane, waiting, relay from pgonce.outbox_lanes;
create or replace view pgonce.outbox_lanes as
select l.subscription, l.lane, b.waiting, b.oldest_at, pgonce.now() - b.oldest_at as oldest_age, k.parked, k.dead,
       case when l.lease_until > pgonce.now() then l.owner end as relay, l.lease_until, l.epoch, l.advanced_at
  from pgonce.outbox_cursor l
  join pgonce.outbox_subscription c on c.subscription = l.subscription
  cross join lateral (
       select count(*) as parked, count(*) filter (where p.state = 'dead') as dead
         from pgonce.parked p where p.subscription = l.subscription and p.lane = l.lane) k
  cross join lateral (
       select count(*) as waiting, min(w.created_at) as oldest_at
         from (select o.created_at from pgonce.outbox o
                where o.lane = l.lane and o.seq > (l.cursor).floor
                  and pgonce._is_unread(o.seq, o.xid, l.cursor, (select f.base_seq from pgonce.outbox_state f))
                  and pgonce._is_wanted(o.topic, o.type, o.tenant, c.topics, c.types, c.tenants)
                order by o.seq limit 10000) w) b;
