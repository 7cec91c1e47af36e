-- pgonce._take_stale(p_limit, p_owner, p_hold, p_skip): takes over intents whose holder vanished and that recovery can do something
--          about, but for those of the scopes p_skip.
-- answers  what was taken: its names, the new fence, and the probe to ask before pgonce._decide_stale
-- locks    the rows it takes; those in use are left: a holder inside its guarded write is not disturbed
-- writes   the rows, under a new fence: whatever the old holder does from now on is refused. They are held for p_hold; where the
--          process ends, another takes them after that
-- raises   22023 a limit or a time that is not positive
-- note     scope by scope, by an index: what recovery can do nothing about may be much, and is not read. A few rows of each scope are
--          locked beside those that are taken, until the end of the transaction
-- note     without a probe, and with no queue to retry in, "takeover" needs nobody: the next claim does it. "hold" is an operator's.
--          A probe that failed is asked again after half the time since the first attempt, 10 seconds to 1 hour; that is no further
--          attempt: while nobody can say what happened, an intent uses up none of its attempts
create or replace function pgonce._take_stale(p_limit integer, p_owner text, p_hold interval, p_skip text[] default '{}')
returns table (tenant text, scope text, key text, fence bigint, probe text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_row record;
    v_now timestamptz;
begin
    if (p_limit > 0 and p_hold > interval '0') is not true then
        raise exception 'recovery needs a positive limit and a positive time' using errcode = '22023',
            hint = 'For example 10 intents, held for 1 minute.';
    end if;
    perform pgonce._force_durable_commit();
    for v_row in
        with recursive unfinished (scope) as (
            (select i.scope from pgonce.intent i
              where i.expires_at is null and (i.status = 'processing' or i.vanished_at is not null)
                and i.failure_code is distinct from 'needs_manual_action'
              order by i.scope limit 1)
            union all
            select (select i.scope from pgonce.intent i
                     where i.expires_at is null and (i.status = 'processing' or i.vanished_at is not null)
                       and i.failure_code is distinct from 'needs_manual_action' and i.scope > u.scope
                     order by i.scope limit 1)
              from unfinished u where u.scope is not null)
        select t.tenant, t.scope, t.key, t.fence, t.probe
          from unfinished u
         cross join lateral (
               select i.tenant, i.scope, i.key, i.fence, c.probe, coalesce(i.lease_until, i.last_at) as since
                 from pgonce.intent i
                cross join lateral (
                      select s.stale, s.probe, s.retry_queue from pgonce.scope s
                       where (s.tenant, s.scope) in ((i.tenant, i.scope), ('', i.scope), ('', '*'))
                       order by s.scope = i.scope desc, s.tenant = i.tenant desc
                       limit 1) c
                where i.scope = u.scope and i.expires_at is null and coalesce(i.lease_until, i.last_at) <= pgonce.now()
                  and (i.status = 'processing' or i.vanished_at is not null)
                  and i.failure_code is distinct from 'needs_manual_action'
                  and (c.probe is not null or c.stale = 'refuse' or c.stale = 'takeover' and c.retry_queue is not null and i.status = 'processing')
                  and (i.failure_code is null or i.status <> 'processing'
                       or i.last_at + greatest(interval '10 seconds', least(interval '1 hour', (i.last_at - i.first_at) / 2)) <= pgonce.now())
                order by coalesce(i.lease_until, i.last_at)
                limit p_limit
                  for update of i skip locked) t
         where u.scope <> all (p_skip collate "C")
           -- A contract of a tenant's own, of the scope, or else of all others: what none of them lets it act on is not read.
           and exists (
               select from pgonce.scope s
                where (s.scope = u.scope or s.tenant = '' and s.scope = '*'
                       and not exists (select from pgonce.scope o where o.tenant = '' and o.scope = u.scope))
                  and (s.probe is not null or s.stale = 'refuse' or s.stale = 'takeover' and s.retry_queue is not null))
         order by t.since
         limit p_limit
    loop
        v_now := pgonce.now();
        update pgonce.intent i
           set status = 'processing', fence = pgonce._next_fence(v_row.fence, true, v_row.tenant), owner = p_owner, last_at = v_now,
               attempts = i.attempts + case when i.failure_code is distinct from 'probe_failed' then 1 else 0 end,
               vanished_at = coalesce(i.vanished_at, v_now), lease_until = v_now + p_hold, failure_code = null, failure_message = null
         where i.tenant = v_row.tenant and i.scope = v_row.scope and i.key = v_row.key
        returning i.fence into strict fence;
        tenant := v_row.tenant;
        scope := v_row.scope;
        key := v_row.key;
        probe := v_row.probe;
        return next;
    end loop;
end
$$;
