-- pgonce.find(p_id, p_part): finds what an id names, in whatever form somebody has it: a key (the client's, as it is stored, or
--          hashed as in logs), a reference, a correlation id, a fingerprint, a message id, a subject, a trace id, a job's key,
--          the effect key of a call to a provider, the provider's reference or the id of its event.
-- answers  one row for each thing: what it is, as what the id was found, its tenant, where it is (scope, topic, consumer or queue), its
--          id there, its status, since when, and in words what is known of it. p_part is one of
--            intents, events, messages, jobs, calls         look-ups by index
--            all_intents, all_events, all_messages          hashed keys and fingerprints; subjects, message ids and trace
--                                                           ids of events; keys, trace ids and hashed ids of stored messages: they
--                                                           read whole tables, so limit their time
-- locks    nothing
-- writes   nothing
-- raises   22023 an unknown part, or no id
-- note     no row does not say that it never happened: an attempt in an open transaction has no record before it ends (where its scope is
--          known, its lock is found), records are purged after their retention, and events leave the log. Each look-up ends after
--          100 rows: where a part answers as many, there may be more
-- example  select what, place, id, status, verdict from pgonce.find('order-7', 'intents');
create or replace function pgonce.find(p_id text, p_part text)
returns table (what text, found_as text, tenant text, place text, id text, status text, at timestamptz, verdict text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id     text collate "C" := p_id;
    v_client text collate "C" := left(p_id, 222);
    v_number bigint := case when p_id collate "C" ~ '^[0-9]{1,18}$' then p_id::bigint end;
    v_uuid   uuid := case when p_id collate "C" ~* '^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$' then p_id::uuid end;
    v_hex    bytea := case when p_id collate "C" ~* '^([0-9a-f]{2}){8,64}$' then decode(p_id, 'hex') end;
begin
    if coalesce(p_id, '') = '' then
        raise exception 'there is nothing to find' using errcode = '22023', hint = 'Give a key, a reference or another id.';
    elsif p_part collate "C" = 'intents' then
        -- From scope to scope by the primary key; in each the key itself, or what the HTTP layer made of a client's key.
        return query
        with recursive steps (tenant, scope, n) as (
            (select i.tenant, i.scope, 1 from pgonce.intent i order by i.tenant, i.scope limit 1)
            union all
            select s.* from steps p cross join lateral (
                select i.tenant, i.scope, p.n + 1 from pgonce.intent i
                 where (i.tenant, i.scope) > (p.tenant, p.scope) order by i.tenant, i.scope limit 1) s
             where p.n < 100000)
        select 'intent', f.as, i.tenant::text, i.scope::text, i.key::text, i.status::text, i.first_at, pgonce._verdict(i)
          from steps p cross join lateral (
               select 'key' as as, k.key from (select v_id as key) k
               union all
               (select 'client key', i.key from pgonce.intent i
                 where i.tenant = p.tenant and i.scope = p.scope and i.key > v_client || '#' and i.key < v_client || '$'
                   and octet_length(i.key) = octet_length(v_client) + 33 limit 100)) f
          join pgonce.intent i on i.tenant = p.tenant and i.scope = p.scope and i.key = f.key
         limit 100;
        return query
        select 'intent', 'correlation', i.tenant::text, i.scope::text, i.key::text, i.status::text, i.first_at, pgonce._verdict(i)
          from pgonce.intent i where i.correlation_id = v_id collate "default" limit 100;
        return query
        select 'intent', 'reference', i.tenant::text, i.scope::text, i.key::text, i.status::text, i.first_at, pgonce._verdict(i)
          from pgonce.intent i
         where i.ref_id = any (array[v_id, substr(v_id, position('/' in v_id) + 1)] collate "default") and v_id in (i.ref_id, i.ref_type || '/' || i.ref_id)
         limit 100;
        -- An attempt in an open transaction has only its lock.
        return query
        select 'attempt', 'key', s.tenant::text, s.scope::text, v_id, 'under way', null::timestamptz,
               'An attempt is under way in an open transaction: ask again when it has ended.'
          from pgonce.scope s
          join pg_catalog.pg_locks l on (l.classid::bigint << 32) | l.objid::bigint = pgonce._lock_id(s.tenant, s.scope, v_id)
         where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.mode = 'ExclusiveLock'
           and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
           and not exists (select from pgonce.intent i where i.tenant = s.tenant and i.scope = s.scope and i.key = v_id)
         limit 100;
        return query
        select 'operator act', 'key', o.tenant::text, o.scope::text, o.key::text, o.act, o.acted_at,
               format('%s, status before: %s. %s', coalesce(o.person, o.role), o.before ->> 'status', o.reason)
          from pgonce.operator_act o
         where o.key = v_id order by o.number desc limit 100;
    elsif p_part collate "C" = 'events' then
        return query
        select 'event', 'number', o.tenant::text, o.topic::text, o.message_id::text, null, o.created_at, format('%s, subject %s, number %s.', o.type, o.subject, o.seq)
          from pgonce.outbox o
         where o.lane = any (array(select n::smallint from generate_series(0, 15) n)) and o.seq = v_number;
        return query
        select 'parked event', 'message', k.tenant::text, k.topic::text, k.message_id::text, k.state, k.parked_at,
               format('%s: %s, subject %s, number %s. %s', k.subscription, k.type, k.subject, k.seq, k.reason)
          from (with recursive tenants (tenant, n) as (
                    (select p.tenant, 1 from pgonce.parked p order by p.tenant limit 1)
                    union all
                    select s.* from tenants t cross join lateral (
                        select p.tenant, t.n + 1 from pgonce.parked p where p.tenant > t.tenant order by p.tenant limit 1) s
                     where t.n < 10000)
                select p.* from pgonce.parked p where p.message_id = v_uuid
                union
                select p.* from pgonce.outbox_subscription s join pgonce.parked p on p.subscription = s.subscription and p.seq = v_number
                union
                select p.* from tenants t cross join pgonce.outbox_subscription s cross join lateral (
                    select * from pgonce.parked k where k.tenant = t.tenant and k.subscription = s.subscription and k.subject = v_id
                     order by k.seq limit 100) p) k
         limit 100;
        return query
        select 'skipped event', 'message', k.tenant::text, k.topic::text, k.message_id::text, 'skipped', k.skipped_at,
               format('%s: %s, by %s.', k.subscription, k.reason, k.skipped_by)
          from (select p.* from pgonce.outbox_skipped p where p.message_id = v_uuid
                union
                select p.* from pgonce.outbox_skipped p where p.subject = v_id
                union
                select p.* from pgonce.outbox_subscription s cross join lateral (
                    select * from pgonce.outbox_skipped k where k.tenant = '' and k.subscription = s.subscription and k.seq = v_number limit 1) p) k
         limit 100;
    elsif p_part collate "C" = 'messages' then
        -- From tenant to tenant by the primary key, in which the message id comes next.
        return query
        with recursive tenants (tenant, n) as (
            (select k.tenant, 1 from pgonce.inbox_marker k order by k.tenant limit 1)
            union all
            select s.* from tenants p cross join lateral (
                select k.tenant, p.n + 1 from pgonce.inbox_marker k where k.tenant > p.tenant order by k.tenant limit 1) s
             where p.n < 10000)
        select 'message', 'message', k.tenant::text, k.consumer::text, k.message_id::text, 'accepted', k.accepted_at, 'Accepted once, from ' || k.source || '.'
          from tenants p join pgonce.inbox_marker k on k.tenant = p.tenant and k.message_id = v_id
         limit 100;
        -- Stored ones in the same way, by the constraint one_stored_message_per_payload.
        return query
        with recursive sources (tenant, consumer, source, n) as (
            (select m.tenant, m.consumer, m.source, 1 from pgonce.inbox_message m order by m.tenant, m.consumer, m.source limit 1)
            union all
            select s.* from sources p cross join lateral (
                select m.tenant, m.consumer, m.source, p.n + 1 from pgonce.inbox_message m
                 where (m.tenant, m.consumer, m.source) > (p.tenant, p.consumer, p.source)
                 order by m.tenant, m.consumer, m.source limit 1) s
             where p.n < 10000)
        select 'stored message', 'message', m.tenant::text, m.consumer::text, m.message_id::text, m.status::text, m.received_at,
               coalesce(m.failure_message, '')
          from sources p
          join pgonce.inbox_message m on m.tenant = p.tenant and m.consumer = p.consumer and m.source = p.source and m.message_id = v_id
         limit 100;
    elsif p_part collate "C" = 'jobs' then
        return query
        with recursive queues (tenant, queue, n) as (
            (select j.tenant, j.queue, 1 from pgonce.job j where j.unique_key is not null order by j.tenant, j.queue limit 1)
            union all
            select s.* from queues p cross join lateral (
                select j.tenant, j.queue, p.n + 1 from pgonce.job j
                 where j.unique_key is not null and (j.tenant, j.queue) > (p.tenant, p.queue) order by j.tenant, j.queue limit 1) s
             where p.n < 10000
        ), live (tenant, queue, n) as (
            (select j.tenant, j.queue, 1 from pgonce.job_live j where j.key is not null order by j.tenant, j.queue limit 1)
            union all
            select s.* from live p cross join lateral (
                select j.tenant, j.queue, p.n + 1 from pgonce.job_live j
                 where j.key is not null and (j.tenant, j.queue) > (p.tenant, p.queue) order by j.tenant, j.queue limit 1) s
             where p.n < 10000
        ), tenants (tenant, n) as (
            (select j.tenant, 1 from pgonce.job j order by j.tenant limit 1)
            union all
            select s.* from tenants p cross join lateral (
                select j.tenant, p.n + 1 from pgonce.job j where j.tenant > p.tenant order by j.tenant limit 1) s
             where p.n < 10000)
        select 'job', f.as, j.tenant::text, j.queue::text, j.id::text, j.status, j.created_at, coalesce(j.failure_message, '')
          from (select 'unique key' as as, k.tenant, k.id from queues q
                  join pgonce.job k on k.tenant = q.tenant and k.queue = q.queue and k.unique_key = v_id
                union
                select 'group', k.tenant, k.id from tenants t join pgonce.job k on k.tenant = t.tenant and k.group_name = v_id
                union
                select 'key', k.tenant, k.id from live q
                  join pgonce.job_live k on k.tenant = q.tenant and k.queue = q.queue and k.key = v_id
                union
                select 'number', k.tenant, k.id from tenants t join pgonce.job k on k.tenant = t.tenant and k.id = v_number) f
          join pgonce.jobs j on j.tenant = f.tenant and j.id = f.id
         limit 100;
    elsif p_part collate "C" = 'calls' then
        return query
        with recursive tenants (tenant, n) as (
            (select c.tenant, 1 from pgonce.external_call c order by c.tenant limit 1)
            union all
            select s.* from tenants p cross join lateral (
                select c.tenant, p.n + 1 from pgonce.external_call c where c.tenant > p.tenant order by c.tenant limit 1) s
             where p.n < 10000
        ), providers (tenant, provider, n) as (
            (select c.tenant, c.provider, 1 from pgonce.external_call c where c.reference is not null
              order by c.tenant, c.provider limit 1)
            union all
            select s.* from providers p cross join lateral (
                select c.tenant, c.provider, p.n + 1 from pgonce.external_call c
                 where c.reference is not null and (c.tenant, c.provider) > (p.tenant, p.provider) order by c.tenant, c.provider limit 1) s
             where p.n < 10000
        ), scopes (tenant, scope, n) as (
            (select c.tenant, c.scope, 1 from pgonce.external_call c order by c.tenant, c.scope limit 1)
            union all
            select s.* from scopes p cross join lateral (
                select c.tenant, c.scope, p.n + 1 from pgonce.external_call c
                 where (c.tenant, c.scope) > (p.tenant, p.scope) order by c.tenant, c.scope limit 1) s
             where p.n < 10000)
        select 'external call', f.as, c.tenant::text, c.scope::text, c.key::text, c.status, c.requested_at,
               concat_ws(', ', format('Step %s at %s, effect key %s', c.step, c.provider, c.effect_key), 'reference ' || c.reference,
                   'decided by ' || c.decided_by, 'disputed: ' || c.disputed) || '.'
          from (select 'effect key' as as, k.effect_key, k.tenant from tenants t cross join lateral (
                    select c.tenant, c.effect_key from pgonce.external_call c
                     where c.tenant = t.tenant and c.effect_key = v_uuid limit 1) k
                union
                select 'reference', k.effect_key, k.tenant from providers p cross join lateral (
                    select c.tenant, c.effect_key from pgonce.external_call c
                     where c.tenant = p.tenant and c.provider = p.provider and c.reference = v_id limit 100) k
                union
                -- Of a command, also where it has no record any more.
                select 'key', k.effect_key, k.tenant from scopes p cross join lateral (
                    select c.tenant, c.effect_key from pgonce.external_call c
                     where c.tenant = p.tenant and c.scope = p.scope and c.key = v_id limit 100) k) f
         cross join lateral (
               select v.* from pgonce.external_calls v where v.tenant = f.tenant and v.effect_key = f.effect_key limit 1) c
         limit 100;
        return query
        with recursive providers (tenant, provider, n) as (
            (select e.tenant, e.provider, 1 from pgonce.external_event e order by e.tenant, e.provider limit 1)
            union all
            select s.* from providers p cross join lateral (
                select e.tenant, e.provider, p.n + 1 from pgonce.external_event e
                 where (e.tenant, e.provider) > (p.tenant, p.provider) order by e.tenant, e.provider limit 1) s
             where p.n < 10000)
        select 'provider event', f.as, e.tenant::text, e.provider::text, e.event_id::text,
               case when e.applied_at is null then 'waiting' else 'applied' end, e.seen_at,
               concat_ws(', ', 'It says ' || e.outcome, 'reference ' || e.reference, 'effect key ' || e.effect_key) || '.'
          from (select 'event' as as, k.* from providers p cross join lateral (
                    select e.tenant, e.provider, e.event_id from pgonce.external_event e
                     where e.tenant = p.tenant and e.provider = p.provider and e.event_id = v_id limit 1) k
                union
                select 'reference', k.* from providers p cross join lateral (
                    select e.tenant, e.provider, e.event_id from pgonce.external_event e
                     where e.tenant = p.tenant and e.provider = p.provider and e.reference = v_id and e.applied_at is null
                     limit 100) k) f
         cross join lateral (
               select v.* from pgonce.external_event v
                where v.tenant = f.tenant and v.provider = f.provider and v.event_id = f.event_id limit 1) e
         limit 100;
    elsif p_part collate "C" = 'all_intents' then
        return query
        select 'external reference', 'reference', r.tenant::text, r.system || '/' || r.kind, r.reference::text, null, r.at, 'It names ' || r.id || '.'
          from pgonce.external_reference r where r.reference = v_id limit 100;
        return query
        select 'intent', case when i.fingerprint = v_hex then 'fingerprint' else 'hashed key' end, i.tenant::text, i.scope::text, i.key::text,
               i.status::text, i.first_at, pgonce._verdict(i)
          from pgonce.intent i
         where i.fingerprint = v_hex
            or substr(sha256(convert_to(i.key, 'UTF8')), 1, octet_length(v_hex)) = v_hex
            or octet_length(i.key) > 33 and substr(i.key, length(i.key) - 32, 1) = '#'
               and substr(sha256(convert_to(left(i.key, -33), 'UTF8')), 1, octet_length(v_hex)) = v_hex
         limit 100;
    elsif p_part collate "C" = 'all_events' then
        return query
        select 'event', case when o.subject = v_id then 'subject' when o.message_id = v_uuid then 'message' else 'trace' end, o.tenant::text,
               o.topic::text, o.message_id::text, null, o.created_at, format('%s, subject %s, number %s.', o.type, o.subject, o.seq)
          from pgonce.outbox o
         where o.subject = v_id or o.message_id = v_uuid
            or octet_length(v_hex) in (8, 16) and o.headers ->> 'traceparent' like '%-' || lower(v_id) || '-%'
         order by o.seq desc limit 100;
    elsif p_part collate "C" = 'all_messages' then
        return query
        select 'stored message', case when m.key = v_id then 'key'
                   when octet_length(v_hex) in (8, 16) and m.headers ->> 'traceparent' like '%-' || lower(v_id) || '-%' then 'trace'
                   else 'hashed id' end, m.tenant::text, m.consumer::text, m.message_id::text,
               m.status::text, m.received_at, coalesce(m.failure_message, '')
          from pgonce.inbox_message m
         where m.key = v_id or substr(sha256(convert_to(m.message_id, 'UTF8')), 1, octet_length(v_hex)) = v_hex
            or octet_length(v_hex) in (8, 16) and m.headers ->> 'traceparent' like '%-' || lower(v_id) || '-%'
         order by m.seq desc limit 100;
    else
        raise exception 'there is no part %', coalesce(quote_literal(p_part), 'null') using errcode = '22023',
            hint = 'The parts are intents, events, messages, jobs, calls, all_intents, all_events and all_messages.';
    end if;
end
$$;
