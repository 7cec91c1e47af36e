-- What is stored, how fast it grows, and how much there will be after $1 days. Reads no large table: counts of the last seven days
-- (pgonce.sample, and the partitions of markers by day), estimates of the planner, sizes of files, and a few hundred pages of intents
-- for how long they are kept.
with steps as (
    select s.at - lag(s.at) over w as took, s.intents - lag(s.intents) over w as intents, s.events - lag(s.events) over w as events,
           s.jobs - lag(s.jobs) over w as jobs
      from pgonce.sample s where s.at > pgonce.now() - interval '7 days' window w as (order by s.at)
), seen as (
    -- A count that begins anew, where statistics were reset, is left out.
    select sum(k.took) as observed, sum(k.intents) filter (where k.intents > 0) as intents, sum(k.events) filter (where k.events > 0) as events,
           sum(k.jobs) filter (where k.jobs > 0) as jobs
      from steps k
), days as (
    -- Today is not over. A partition that nobody analysed and that has something in it says nothing.
    select case when pg_relation_size(c.oid) = 0 then 0 when c.reltuples >= 0 then c.reltuples end as markers
      from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'pgonce.inbox_marker'::regclass and c.relname ~ '[0-9]{8}$'
       and to_date(right(c.relname, 8), 'YYYYMMDD') between (pgonce.now() at time zone 'UTC')::date - 7 and (pgonce.now() at time zone 'UTC')::date - 1
), size as (
    select t.what, sum(greatest(c.reltuples, 0)) filter (where t.counts)::numeric as rows, sum(pg_total_relation_size(c.oid))::numeric as bytes
      from (select 'intents' as what, 'pgonce.intent'::regclass::oid as oid, true as counts
            union all select 'events', i.inhrelid, true from pg_inherits i where i.inhparent = 'pgonce.outbox'::regclass
            union all select 'messages', i.inhrelid, true from pg_inherits i where i.inhparent = 'pgonce.inbox_marker'::regclass
            union all select 'messages', 'pgonce.inbox_message'::regclass, false
            union all select 'jobs', 'pgonce.job'::regclass, true
            union all select 'jobs', 'pgonce.job_live'::regclass, false
            union all select 'jobs', 'pgonce.job_end'::regclass, false) t
      join pg_class c on c.oid = t.oid
     group by t.what
), rate as (
    select 1 as place, 'intents' as what, s.intents / d.days as per_day, s.observed,
           coalesce((select avg(x.kept) from (
                -- What an application wrote by itself may have any time.
                select least(i.expires_at - coalesce(i.last_at, i.first_at), interval '1000 years') as kept
                  from pgonce.intent i tablesample system ((select least(100, 20000.0 / greatest(c.relpages, 1)) from pg_class c where c.oid = 'pgonce.intent'::regclass))
                 where isfinite(i.expires_at) and isfinite(coalesce(i.last_at, i.first_at)) and i.gone_at is null limit 5000) x),
               (select max(c.retention) from pgonce.scope c)) as kept
      from seen s, lateral (select extract(epoch from s.observed)::numeric / 86400 as days) d
    union all
    select 2, 'events', s.events / d.days, s.observed, (select o.keep from pgonce.outbox_state o)
      from seen s, lateral (select extract(epoch from s.observed)::numeric / 86400 as days) d
    union all
    select 3, 'messages', avg(y.markers)::numeric, count(y.markers) * interval '1 day',
           (select case when bool_or(n.keep is null) then null else max(n.keep) end from pgonce.inbox_contract n)
      from days y
    union all
    select 4, 'jobs', s.jobs / d.days, s.observed, (select max(q.keep) from pgonce.job_queue q)
      from seen s, lateral (select extract(epoch from s.observed)::numeric / 86400 as days) d
), known as (
    -- An hour at least, and a hundred rows: the first pages of every index would count for too much.
    select r.place, r.what, z.rows, z.bytes, r.observed, r.kept, extract(epoch from r.kept)::numeric / 86400 as kept_days,
           case when r.observed >= interval '1 hour' then coalesce(r.per_day, 0) end as per_day,
           case when z.rows >= 100 then z.bytes / z.rows end as width
      from rate r join size z on z.what = r.what
), ahead as (
    -- It goes towards what the rate and the retention come to, and no faster than the rate.
    select k.*, case when k.kept is null then k.rows + k.per_day * $1
                     when k.per_day * k.kept_days >= k.rows then least(k.rows + k.per_day * $1, k.per_day * k.kept_days)
                     else greatest(k.rows - k.per_day * $1, k.per_day * k.kept_days) end as rows_then
      from known k
)
select a.place, a.what, a.rows::bigint as rows, a.bytes::bigint as bytes, a.per_day::bigint as rows_per_day, (a.per_day * a.width)::bigint as bytes_per_day,
       date_trunc('second', a.kept) as kept, a.rows_then::bigint as rows_then,
       case when a.rows_then = 0 then 0 else a.rows_then * a.width end::bigint as bytes_then, date_trunc('second', a.observed) as observed
  from ahead a
