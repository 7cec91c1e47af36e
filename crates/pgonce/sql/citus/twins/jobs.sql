-- pgonce.jobs on Citus: as queue/jobs.sql; an event that was given up is dead, and stays in its place.
create or replace view pgonce.jobs as
select j.tenant, j.id, j.queue, j.unique_key, j.key, j.group_name, j.priority,
       coalesce(e.status::text, case when l.state = 'limited' then 'running'
           when l.state = 'retrying' and l.due_at is null then 'dead' else l.state::text end) as status,
       coalesce(e.attempts, l.attempts) as attempts, coalesce(e.owner, l.owner) as owner, l.progress, e.result,
       coalesce(e.failure_code, l.failure_code) as failure_code, coalesce(e.failure_message, l.failure_message) as failure_message,
       j.created_at, l.due_at, e.ended_at
  from pgonce.job j
  left join pgonce.job_live l on l.tenant = j.tenant and l.id = j.id
  left join pgonce.job_end e on e.tenant = j.tenant and e.id = j.id;
