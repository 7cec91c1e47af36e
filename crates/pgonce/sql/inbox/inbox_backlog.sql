-- pgonce.inbox_backlog: for each consumer what is stored and not applied, and for how long.
-- note     counted among the 1000 messages of a consumer that are due next, and its first 1000 poison messages
-- note     held counts those that wait behind another of their key. A consumer of an ordered source is listed
--          too: cursor_age is the age of the partition that has not moved for the longest time
-- example  select consumer, received, retrying, poison, oldest_age from pgonce.inbox_backlog;
create or replace view pgonce.inbox_backlog as
with recursive waiting (consumer) as (
    (select m.consumer from pgonce.inbox_message m where m.status in ('received', 'processing', 'failed_retryable')
      order by m.consumer limit 1)
    union all
    select n.consumer from waiting w cross join lateral (
        select m.consumer from pgonce.inbox_message m
         where m.status in ('received', 'processing', 'failed_retryable') and m.consumer > w.consumer
         order by m.consumer limit 1) n
), poisoned (consumer) as (
    (select m.consumer from pgonce.inbox_message m where m.status = 'failed_final' and m.skipped_at is null
      order by m.consumer limit 1)
    union all
    select n.consumer from poisoned p cross join lateral (
        select m.consumer from pgonce.inbox_message m
         where m.status = 'failed_final' and m.skipped_at is null and m.consumer > p.consumer
         order by m.consumer limit 1) n
), unapplied as (
    select s.* from waiting w cross join lateral (
        select m.tenant, m.consumer, m.seq, m.key, m.status, m.received_at from pgonce.inbox_message m
         where m.consumer = w.consumer and m.status in ('received', 'processing', 'failed_retryable') and m.skipped_at is null
         order by m.due_at, m.seq limit 1000) s
    union all
    select s.* from poisoned p cross join lateral (
        select m.tenant, m.consumer, m.seq, m.key, m.status, m.received_at from pgonce.inbox_message m
         where m.consumer = p.consumer and m.status = 'failed_final' and m.skipped_at is null
         order by m.seq limit 1000) s
), counted as (
    select s.tenant, s.consumer, count(*) filter (where s.status = 'received') as received,
           count(*) filter (where s.status = 'processing') as processing,
           count(*) filter (where s.status = 'failed_retryable') as retrying,
           count(*) filter (where s.status = 'failed_final') as poison,
           count(*) filter (where s.key is not null and exists (
               select from pgonce.inbox_message f where f.tenant = s.tenant and f.consumer = s.consumer and f.key = s.key
                  and f.seq < s.seq and f.status <> 'processed' and f.skipped_at is null and f.holds_key)) as held,
           min(s.received_at) as oldest_at
      from unapplied s group by s.tenant, s.consumer
)
select coalesce(m.tenant, c.tenant) as tenant, coalesce(m.consumer, c.consumer) as consumer,
       coalesce(m.received, 0) as received, coalesce(m.processing, 0) as processing, coalesce(m.retrying, 0) as retrying,
       coalesce(m.poison, 0) as poison, coalesce(m.held, 0) as held, m.oldest_at, pgonce.now() - m.oldest_at as oldest_age,
       coalesce(c.partitions, 0) as partitions, pgonce.now() - c.moved_at as cursor_age
  from counted m
  full join (select k.tenant, k.consumer, count(*) as partitions, min(k.moved_at) as moved_at
               from pgonce.inbox_cursor k group by k.tenant, k.consumer) c on c.tenant = m.tenant and c.consumer = m.consumer;
