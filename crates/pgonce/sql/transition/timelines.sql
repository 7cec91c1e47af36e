-- pgonce.timelines: every command to every entity, in the order in which they were decided.
-- answers  a row per command, applied or rejected; version is the entity's after it
-- example  select entity, command, from_state, to_state, outcome, at from pgonce.timelines order by seq;
create or replace view pgonce.timelines as
select c.tenant, c.machine, c.entity, c.seq, c.command, c.from_state, c.to_state, c.outcome, c.version, c.data, c.who, c.at
  from pgonce.transition_command c;
