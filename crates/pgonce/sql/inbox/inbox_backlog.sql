-- pgonce.inbox_backlog: for each consumer what is stored and not applied, and for how long.
-- note     held counts those that wait behind another of their key. A consumer of an ordered source is listed
--          too: cursor_age is the age of the partition that has not moved for the longest time
-- example  select consumer, received, retrying, poison, oldest_age from pgonce.inbox_backlog;
create or replace view pgonce.inbox_backlog as
select n.tenant, n.consumer,
       m.received, m.processing, m.retrying, m.poison, m.held, m.oldest_at, pgonce.now() - m.oldest_at as oldest_age,
       c.partitions, pgonce.now() - c.moved_at as cursor_age
  from (select s.tenant, s.consumer from pgonce.inbox_message s
         where s.status <> 'processed' and s.skipped_at is null
        union select k.tenant, k.consumer from pgonce.inbox_cursor k) n
  cross join lateral (
       select count(*) filter (where s.status = 'received') as received,
              count(*) filter (where s.status = 'processing') as processing,
              count(*) filter (where s.status = 'failed_retryable') as retrying,
              count(*) filter (where s.status = 'failed_final') as poison,
              count(*) filter (where s.key is not null and exists (
                  select from pgonce.inbox_message f where f.tenant = s.tenant and f.consumer = s.consumer
                     and f.key = s.key and f.seq < s.seq and f.status <> 'processed' and f.skipped_at is null)) as held,
              min(s.received_at) as oldest_at
         from pgonce.inbox_message s
        where s.tenant = n.tenant and s.consumer = n.consumer and s.status <> 'processed' and s.skipped_at is null) m
  cross join lateral (
       select count(*) as partitions, min(k.moved_at) as moved_at
         from pgonce.inbox_cursor k where k.tenant = n.tenant and k.consumer = n.consumer) c;
