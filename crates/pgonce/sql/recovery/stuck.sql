-- pgonce.stuck: intents whose work stopped before its end, oldest first, with what may be done.
-- note     needs_probe: pgonce recover asks the probe of the contract, and decides. A failure code of probe_failed says that it could
--          not, and is asked again
-- note     nothing here is deleted for being old
-- example  select scope, key, stuck_for, classification from pgonce.stuck;
create or replace view pgonce.stuck as
select i.tenant, i.scope, i.key, i.status, i.attempts, i.fence, i.owner, i.correlation_id,
       i.first_at, i.last_at, i.lease_until,
       pgonce.now() - coalesce(i.lease_until, i.last_at) as stuck_for,
       i.failure_code, i.failure_message,
       case
           when i.status = 'failed_retryable' and i.vanished_at is null then 'safe_to_retry'
           when i.failure_code = 'needs_manual_action' then 'needs_manual_action'
           when c.probe is not null then 'needs_probe'
           when c.stale = 'takeover' then 'safe_to_retry'
           when c.stale = 'refuse' then 'abandoned'
           else 'needs_manual_action'
       end as classification
  from pgonce.intent i
 left join lateral (
       select s.stale, s.probe from pgonce.scope s
        where (s.tenant, s.scope) in ((i.tenant, i.scope), ('', i.scope), ('', '*'))
        order by s.scope = i.scope desc, s.tenant = i.tenant desc
        limit 1) c on true
 where i.expires_at is null
   and coalesce(i.lease_until, i.last_at) <= pgonce.now()
 order by coalesce(i.lease_until, i.last_at);
