-- pgonce.inbox_poison: poison messages, which need manual action, and how many of their key wait behind them.
-- example  select consumer, seq, message_id, failure_code, behind from pgonce.inbox_poison;
create or replace view pgonce.inbox_poison as
select m.consumer, m.tenant, m.seq, m.source, m.message_id, m.key, m.type, m.attempts, m.failure_code,
       m.failure_message, m.received_at, m.size, m.headers, m.payload,
       (select count(*) from pgonce.inbox_message b
         where b.tenant = m.tenant and b.consumer = m.consumer and b.key = m.key and b.seq > m.seq
           and b.status <> 'processed' and b.skipped_at is null) as behind
  from pgonce.inbox_message m
 where m.status = 'failed_final' and m.skipped_at is null
 order by m.consumer, m.seq;
