-- pgonce.queues on Citus: as queue/queues.sql; it reads and counts every live job.
create or replace view pgonce.queues as
select n.queue, r.paused, n.ready, n.running, n.retrying, n.scheduled, n.blocked, n.dead,
       r.max_running, r.max_per_key, r.rate, r.rate_per, r.max_attempts, r.keep
  from (select x.queue, sum(x.ready)::bigint as ready, sum(x.running)::bigint as running, sum(x.retrying)::bigint as retrying,
               sum(x.scheduled)::bigint as scheduled, sum(x.blocked)::bigint as blocked, sum(x.dead)::bigint as dead
          from (select l.queue, count(*) filter (where l.state = 'ready') as ready,
                       count(*) filter (where l.state in ('running', 'limited')) as running,
                       count(*) filter (where l.state = 'retrying' and l.due_at is not null) as retrying,
                       count(*) filter (where l.state = 'scheduled') as scheduled,
                       count(*) filter (where l.state = 'blocked') as blocked,
                       count(*) filter (where l.state = 'retrying' and l.due_at is null) as dead
                  from pgonce.job_live l group by l.queue
                union all
                select e.queue, 0, 0, 0, 0, 0, count(*) from pgonce.job_end e where e.status = 'dead' group by e.queue
                union all
                select q.queue, 0, 0, 0, 0, 0, 0 from pgonce.job_queue q where q.queue <> '*') x
         group by x.queue) n
  join pgonce.job_queue r on r.tenant = '' and (r.queue = n.queue or r.queue = '*' and n.queue not in (
       select o.queue from pgonce.job_queue o where o.tenant = ''));
