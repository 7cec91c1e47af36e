-- pgonce.double_commits: what more than one region committed: for each surplus effect the one that counts, the other, and what
--          was done about it.
-- example  select scope, key, kept_region, surplus_region, surplus_ref from pgonce.double_commits where resolved_at is null;
create or replace view pgonce.double_commits as
select t.tenant, t.scope, t.key, k.name as kept_region, (t.kept ->> 'at')::timestamptz as kept_at,
       t.kept #>> '{record,ref_id}' as kept_ref, t.kept #> '{record,answer}' as kept_answer,
       s.name as surplus_region, (t.surplus ->> 'at')::timestamptz as surplus_at,
       t.surplus #>> '{record,ref_id}' as surplus_ref, t.surplus #> '{record,answer}' as surplus_answer,
       (t.kept #>> '{record,fingerprint}') <> (t.surplus #>> '{record,fingerprint}') as other_request,
       t.found_at, t.resolved_at, t.resolution
  from pgonce.region_task t
  left join pgonce.region k on k.id = (t.kept ->> 'region')::smallint
  left join pgonce.region s on s.id = t.region;
