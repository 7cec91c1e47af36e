-- pgonce.job_groups: whether all jobs of a group are finished, or the group is stuck.
-- note     status: running while a job of it may still run; stuck: none may, and there are dead letters; finished
-- example  select status, jobs, succeeded from pgonce.job_groups where tenant = '' and group_name = 'import-7';
create or replace view pgonce.job_groups as
select j.tenant, j.group_name,
       case when count(l.id) > 0 then 'running' when count(*) filter (where e.status = 'dead') > 0 then 'stuck' else 'finished' end as status,
       count(*) as jobs, count(l.id) as live,
       count(*) filter (where e.status = 'succeeded') as succeeded,
       count(*) filter (where e.status = 'dead') as dead,
       count(*) filter (where e.status = 'cancelled') as cancelled,
       min(j.created_at) as first_at, max(e.ended_at) as last_ended_at
  from pgonce.job j
  left join pgonce.job_live l on l.tenant = j.tenant and l.id = j.id
  left join pgonce.job_end e on e.tenant = j.tenant and e.id = j.id
 where j.group_name is not null
 group by j.tenant, j.group_name;
