-- pgonce.most_retried: intents that took more than one attempt, most attempts first.
-- example  select scope, key, attempts, failure_code from pgonce.most_retried limit 10;
create or replace view pgonce.most_retried as
select i.tenant, i.scope, i.key, i.status, i.attempts, i.owner, i.correlation_id,
       i.first_at, coalesce(i.last_at, i.first_at) as last_at, i.failure_code, i.failure_message
  from pgonce.intent i
 where i.attempts > 1
 order by i.attempts desc, i.first_at;
