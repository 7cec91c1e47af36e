-- pgonce.imports: every file that was imported, and how far it is.
-- answers  a row per file of a job. state: running, done, cancelled, or stopped where no process goes on with it
-- example  select job, number, state, row_count, applied, skipped, changed, failed from pgonce.imports order by job, number;
create or replace view pgonce.imports as
select i.tenant, i.job, i.number, i.source,
       case when i.state = 'running' and i.leased_until <= pgonce.now() then 'stopped' else i.state end as state,
       i.row_count, i.applied, i.skipped, i.changed, i.failed, i.bytes, encode(i.file_hash, 'hex') as file_hash, i.settings,
       i.started_at, i.ended_at
  from pgonce.import i;
