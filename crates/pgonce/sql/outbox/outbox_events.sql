-- pgonce.outbox_events: the log with the column names that Debezium's outbox event router expects.
-- note     Debezium itself reads the table from the write-ahead log; this view is for its snapshots and for
--          operators
-- example  select id, aggregatetype, aggregateid, payload from pgonce.outbox_events;
create or replace view pgonce.outbox_events as
select o.message_id as id, o.topic as aggregatetype, o.subject as aggregateid, o.type,
       o.payload, o.created_at as "timestamp", o.headers ->> 'traceparent' as tracingspancontext,
       o.tenant, o.headers, o.seq
  from pgonce.outbox o;
