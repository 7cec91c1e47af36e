-- pgonce.queues: what each queue holds and allows.
-- example  select queue, paused, ready, running, dead from pgonce.queues;
create or replace view pgonce.queues as
select coalesce(n.queue, q.queue) as queue, r.paused, coalesce(n.ready, 0) as ready, coalesce(n.running, 0) as running,
       coalesce(n.retrying, 0) as retrying, coalesce(n.scheduled, 0) as scheduled, coalesce(n.blocked, 0) as blocked,
       (select count(*) from pgonce.job_end e where e.queue = coalesce(n.queue, q.queue) and e.status = 'dead') as dead,
       r.max_running, r.max_per_key, r.rate, r.rate_per, r.max_attempts, r.keep
  from (select l.queue, count(*) filter (where l.state = 'ready') as ready,
               count(*) filter (where l.state in ('running', 'limited')) as running,
               count(*) filter (where l.state = 'retrying') as retrying,
               count(*) filter (where l.state = 'scheduled') as scheduled,
               count(*) filter (where l.state = 'blocked') as blocked
          from pgonce.job_live l group by l.queue) n
  full join (select d.queue from pgonce.job_queue d where d.queue <> '*'
             union select distinct e.queue from pgonce.job_end e where e.status = 'dead') q on q.queue = n.queue
 cross join lateral (
       select d.* from pgonce.job_queue d
        where d.tenant = '' and d.queue in (coalesce(n.queue, q.queue), '*')
        order by d.queue = coalesce(n.queue, q.queue) desc limit 1) r;
