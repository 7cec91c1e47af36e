-- pgonce.outbox_log: the log as a whole: how long it is kept, and how large it is.
-- note     rest counts events that were published when no partition existed for them
-- example  select keep, partitions, last_seq, bytes from pgonce.outbox_log;
create or replace view pgonce.outbox_log as
select l.keep, l.max_keep, l.partition_rows,
       (select count(*) from pgonce.outbox_partition) as partitions,
       (select min(p.from_seq) from pgonce.outbox_partition p) as oldest_seq,
       coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0) as last_seq,
       (select count(*) from pgonce.outbox_default) as rest,
       (select sum(pg_total_relation_size(i.inhrelid))::bigint from pg_inherits i
         where i.inhparent = 'pgonce.outbox'::regclass) as bytes
  from pgonce.outbox_state l;
