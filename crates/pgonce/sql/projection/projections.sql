-- pgonce.projections: every projection, and how many events or entities it has applied.
-- example  select projection, into_table, gate, applied from pgonce.projections;
create or replace view pgonce.projections as
select p.projection, p.into_table, p.apply, p.gate, coalesce(p.from_consumer, 'the outbox log') as events_from,
       p.defined_at, p.rebuilt_at,
       case p.gate
           when 'version' then (select count(*) from pgonce.projection_gate g where g.projection = p.projection)
           else (select count(*) from pgonce.inbox_marker m where m.consumer = 'projection:' || p.projection)
       end as applied
  from pgonce.projection p;
