-- pgonce.suppression: by scope, how many intents there were and how many duplicates did nothing.
-- note     retries are counted on the intents, the others by the sessions that report them
-- example  select scope, intents, suppressed from pgonce.suppression;
create or replace view pgonce.suppression as
select coalesce(i.tenant, s.tenant) as tenant,
       coalesce(i.scope, s.scope) as scope,
       coalesce(i.intents, 0) as intents,
       coalesce(i.attempts, 0) as attempts,
       coalesce(i.attempts, 0) - coalesce(i.intents, 0) as retries,
       coalesce(s.replays, 0) as replays,
       coalesce(s.refusals, 0) as refusals,
       coalesce(s.busy, 0) as busy,
       coalesce(s.conflicts, 0) as conflicts,
       least(coalesce(s.replays::numeric + s.refusals + s.busy + s.conflicts, 0), 9223372036854775807)::bigint as suppressed
  from (select tenant, scope, count(*) as intents, sum(attempts)::bigint as attempts
          from pgonce.intent group by tenant, scope) i
  full join pgonce.suppressed s on s.tenant = i.tenant and s.scope = i.scope;
