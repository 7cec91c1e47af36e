-- pgonce.dead_letters on Citus: as outbox/dead_letters.sql; seq is the number of the event's job. It reads every live job.
create or replace view pgonce.dead_letters as
select substr(l.queue, 8) as subscription, l.tenant, j.payload ->> 'topic' as topic, j.payload ->> 'type' as type,
       j.payload ->> 'subject' as subject, l.id as seq, (j.payload ->> 'message_id')::uuid as message_id, l.attempts,
       l.failure_message as reason, (l.progress ->> 'dead_at')::timestamptz as parked_at, j.created_at,
       j.payload -> 'headers' as headers, j.payload -> 'payload' as payload, coalesce(b.behind, 0) as behind
  from pgonce.job_live l
  join pgonce.job j on j.tenant = l.tenant and j.id = l.id
  left join (select o.tenant, o.queue, o.key, count(*) as behind from pgonce.job_live o
              where o.state in ('ready', 'blocked') group by o.tenant, o.queue, o.key) b
    on b.tenant = l.tenant and b.queue = l.queue and b.key = l.key
 where l.queue like 'outbox/%' and l.state = 'retrying' and l.due_at is null;
