-- pgonce.dead_letters: events that were given up after their last attempt, with how many of their subject
--          wait behind them.
-- example  select subscription, seq, subject, attempts, reason, behind from pgonce.dead_letters;
create or replace view pgonce.dead_letters as
select k.subscription, k.tenant, k.topic, k.type, k.subject, k.seq, k.message_id, k.attempts, k.reason,
       k.parked_at, k.created_at, k.headers, k.payload,
       (select count(*) from pgonce.parked b
         where b.tenant = k.tenant and b.subscription = k.subscription and b.subject = k.subject
           and b.state = 'behind') as behind
  from pgonce.parked k
 where k.state = 'dead'
 order by k.subscription, k.seq;
