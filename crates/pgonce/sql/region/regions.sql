-- pgonce.regions: the regions that this one knows, and how far behind them it is.
-- example  select name, is_self, state, lag, connected from pgonce.regions;
create or replace view pgonce.regions as
select r.id, r.name, r.address, r.is_self,
       case when r.is_self and not pgonce._region_is_current() then 'restored' else r.state end as state, r.epoch, r.last_beat_at,
       case when not r.is_self and not r.missed then greatest(pgonce.now() - r.last_beat_at, interval '0') end as lag,
       case when not r.is_self then exists (select from pg_catalog.pg_stat_subscription s
            where s.pid is not null and s.subname = c.relnamespace::regnamespace::text || '_region_' || o.id || '_' || r.id) end as connected,
       (select count(*) from pgonce.region_pending) as pending,
       (select count(*) from pgonce.region_task t where t.resolved_at is null) as double_commits,
       r.beat, r.missed,
       (select string_agg(distinct u.scope, ', ') from pgonce.region_rule u where u.pending) as pending_rules
  from pgonce.region r
  join pg_catalog.pg_class c on c.oid = 'pgonce.region'::regclass
  left join pgonce.region o on o.is_self;
