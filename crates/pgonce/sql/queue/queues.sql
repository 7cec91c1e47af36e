-- pgonce.queues: what each queue holds and allows.
-- note     ready, blocked and dead are counted up to 10000; what runs, retries and is scheduled is counted among the 10000
--          jobs of all queues that are due next
-- example  select queue, paused, ready, running, dead from pgonce.queues;
create or replace view pgonce.queues as
with recursive ready (queue) as (
    (select l.queue from pgonce.job_live l where l.state = 'ready' order by l.queue limit 1)
    union all
    select n.queue from ready r cross join lateral (
        select l.queue from pgonce.job_live l where l.state = 'ready' and l.queue > r.queue order by l.queue limit 1) n
), blocked (queue) as (
    (select l.queue from pgonce.job_live l where l.state = 'blocked' order by l.queue limit 1)
    union all
    select n.queue from blocked b cross join lateral (
        select l.queue from pgonce.job_live l where l.state = 'blocked' and l.queue > b.queue order by l.queue limit 1) n
), dead (queue) as (
    (select e.queue from pgonce.job_end e where e.status = 'dead' order by e.queue limit 1)
    union all
    select n.queue from dead d cross join lateral (
        select e.queue from pgonce.job_end e where e.status = 'dead' and e.queue > d.queue order by e.queue limit 1) n
), due as (
    select d.queue, count(*) filter (where d.state in ('running', 'limited')) as running,
           count(*) filter (where d.state = 'retrying') as retrying, count(*) filter (where d.state = 'scheduled') as scheduled
      from (select l.queue, l.state from pgonce.job_live l where l.state in ('scheduled', 'retrying', 'running', 'limited')
             order by l.due_at limit 10000) d
     group by d.queue
), names as (
    select r.queue from ready r union select b.queue from blocked b union select d.queue from dead d union select d.queue from due d
    union select q.queue from pgonce.job_queue q where q.queue <> '*'
)
select n.queue, r.paused,
       (select count(*) from (select from pgonce.job_live l where l.queue = n.queue and l.state = 'ready'
                                  order by l.priority desc, l.id limit 10000) x) as ready,
       coalesce(d.running, 0) as running, coalesce(d.retrying, 0) as retrying, coalesce(d.scheduled, 0) as scheduled,
       (select count(*) from (select from pgonce.job_live l where l.queue = n.queue and l.state = 'blocked'
                                  order by l.queue limit 10000) x) as blocked,
       (select count(*) from (select from pgonce.job_end e where e.queue = n.queue and e.status = 'dead'
                                  order by e.id limit 10000) x) as dead,
       r.max_running, r.max_per_key, r.rate, r.rate_per, r.max_attempts, r.keep
  from names n left join due d on d.queue = n.queue
 cross join lateral (
       select q.* from pgonce.job_queue q
        where q.tenant = '' and q.queue in (n.queue, '*')
        order by q.queue = n.queue desc limit 1) r;
