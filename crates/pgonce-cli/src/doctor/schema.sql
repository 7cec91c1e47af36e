-- Schema: whether the objects of pgonce are as it made them, who may touch them, and how healthy the tables are.

-- check: schema-drift
-- severity: critical
-- title: an object of pgonce is missing or was changed by hand
-- why: The guarantees are constraints, triggers and functions. A changed one may let a second effect through without any error.
select format('%s is %s', s.object, case when l.digest is null then 'missing' else 'not what pgonce loaded' end) as evidence,
       case when l.digest is null and s.object ~ '^(constraint|index)' then 'compare with pg_dump of a fresh installation, and create it again' else 'pgonce migrate up' end as command,
       case when l.digest is null and s.object ~ '^(constraint|index)' then null else 'update pgonce.routines set checksum = ''changed by hand'';' end as sql
  from pgonce.routines r cross join lateral jsonb_each_text(r.definitions) as s (object, digest)
  left join {definitions} as l (object, digest) on l.object = s.object
 -- Another major version prints definitions in another way.
 where r.definitions ->> 'server' = (current_setting('server_version_num')::int / 10000)::text
   and s.object <> 'server' and l.digest is distinct from s.digest
 order by 1 limit 20;

-- check: half-distributed
-- severity: critical
-- title: tables are distributed by Citus, and pgonce's are not
-- why: Citus commits on a worker and on the coordinator in two steps: a crash between them parts an effect from its record. No claim is granted.
select format('%s has rows on other servers', t) as evidence,
       'pgonce migrate up --distribute; or, where no command writes distributed tables, pgonce migrate up --coordinator-only' as command
  from pgonce._remote_tables() t
 where pg_get_functiondef('pgonce._is_one_node()'::regprocedure) not like '%RETURN true%' order by 1 limit 20;

-- check: foreign-trigger
-- severity: warning
-- title: a trigger that is not of pgonce fires on its tables
-- why: It runs inside every command, can change or suppress rows, and breaks with the next migration.
select format('trigger %s on %s', t.tgname, t.tgrelid::regclass) as evidence,
       format('drop trigger %I on %s;', t.tgname, t.tgrelid::regclass) as sql
  from pg_trigger t join pg_class c on c.oid = t.tgrelid cross join pgonce.routines r
 where c.relnamespace = {schema} and not t.tgisinternal and not c.relispartition
   and not r.definitions ? format('trigger %s on %s', t.tgname, t.tgrelid::regclass)
   -- A region has these.
   and t.tgname not in ('region_facts_are_recorded', 'region_evictions_are_recorded')
 order by 1 limit 20;

-- check: trigger-disabled
-- severity: critical
-- title: a trigger of pgonce is disabled
-- why: Changes of state are no longer checked, or history that is append-only can be rewritten.
select format('trigger %s on %s', t.tgname, t.tgrelid::regclass) as evidence,
       format('alter table %s enable trigger %I;', t.tgrelid::regclass, t.tgname) as sql
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
 where c.relnamespace = {schema} and not t.tgisinternal and t.tgenabled in ('D', 'R') order by 1 limit 20;

-- check: clock-replaced
-- severity: critical
-- title: the clock of pgonce is a test's clock
-- why: Leases, expiry and retries follow pgonce.now(). A frozen or moved clock keeps leases alive without end, or expires answers early.
select format('pgonce.now() is %s, the server''s clock is %s', pgonce.now(), clock_timestamp()) as evidence,
       'select pgonce._reset_clock();' as sql
 where pg_get_functiondef('pgonce.now()'::regprocedure) !~ 'RETURN clock_timestamp\(\)\s*$';

-- check: table-unlogged
-- severity: critical
-- title: a table of pgonce is not written ahead
-- why: A crash empties an unlogged table, and a standby never has it: what was acknowledged is forgotten.
select format('%s is unlogged', c.oid::regclass) as evidence, format('alter table %s set logged;', c.oid::regclass) as sql
  from pg_class c where c.relnamespace = {schema} and c.relkind in ('r', 'p') and c.relpersistence <> 'p'
   and c.relname <> 'open_claim' order by 1 limit 20;

-- check: sequence-behind
-- severity: critical
-- title: a sequence is behind the numbers that are in use
-- why: Logical replication and a restore of single tables leave sequences behind. Numbers are then given out a second time: jobs and messages are refused, events are withheld or parked in the place of others, and a lease gets the fence of a holder that is still at work.
with recursive job_tenant (tenant, n) as (
    (select j.tenant, 1 from pgonce.job j order by j.tenant limit 1)
    union all
    -- From tenant to tenant, and from consumer to consumer, by an index: the tables may be large.
    select t.tenant, p.n + 1 from job_tenant p cross join lateral (
        select j.tenant from pgonce.job j where j.tenant > p.tenant order by j.tenant limit 1) t
     where p.n < 1000),
inbox_consumer (consumer, n) as (
    (select m.consumer, 1 from pgonce.inbox_message m order by m.consumer limit 1)
    union all
    select t.consumer, p.n + 1 from inbox_consumer p cross join lateral (
        select m.consumer from pgonce.inbox_message m where m.consumer > p.consumer order by m.consumer limit 1) t
     where p.n < 1000),
-- Where no index leads to the newest rows: the last pages.
last_pages (name, first) as (
    select t.name, format('(%s,0)', greatest(pg_relation_size(t.name) / current_setting('block_size')::bigint - 200, 0))::tid
      from unnest(array['pgonce.intent', 'pgonce.attempt', 'pgonce.job_live', 'pgonce.transition_command', 'pgonce.transition_timer']::regclass[]) t (name)),
leased (fence) as (
    select c.epoch from pgonce.outbox_cursor c
    union all select c.epoch from pgonce.inbox_cursor c
    union all (select i.fence from pgonce.intent i where i.expires_at is null limit 10000)
    union all select i.fence from pgonce.intent i where i.ctid >= (select p.first from last_pages p where p.name = 'pgonce.intent'::regclass)
    union all select a.fence from pgonce.attempt a where a.ctid >= (select p.first from last_pages p where p.name = 'pgonce.attempt'::regclass)
    union all select l.fence from pgonce.job_live l where l.ctid >= (select p.first from last_pages p where p.name = 'pgonce.job_live'::regclass)),
used (name, top) as (
    select 'outbox_seq', greatest((select max(o.seq) from generate_series(0, 15) n cross join lateral (
                                          select l.seq from pgonce.outbox l where l.lane = n::smallint order by l.seq desc limit 1) o),
                                  (select max(k.seq) from pgonce.outbox_subscription s cross join lateral (
                                          select d.seq from pgonce.parked d where d.subscription = s.subscription order by d.seq desc limit 1) k),
                                  (select max(m.seq) from pgonce.outbox_watermark m), (select max(c.published) from pgonce.outbox_cursor c))
    union all
    select 'job_seq', (select max(m.id) from job_tenant t cross join lateral (
        select j.id from pgonce.job j where j.tenant = t.tenant order by j.id desc limit 1) m)
    union all
    select 'inbox_seq', (select max(m.seq) from inbox_consumer t cross join lateral (
        select i.seq from pgonce.inbox_message i where i.consumer = t.consumer order by i.seq desc limit 1) m)
    union all
    -- What pgonce._lease_number made of it, in the epoch that is in force.
    select 'lease_number', (select max((f.fence >> 1) - (e.epoch << 36) - (hashint8(e.life) & 268435455))
                              from leased f join pgonce.installation e on f.fence >> 37 = e.epoch
                             where f.fence & 1 = 0 and e.life = pgonce._database_life()
                               and e.timeline = case when pg_is_in_recovery() then e.timeline else pgonce._timeline() end)
    union all
    select 'region_seq', (select f.seq from pgonce.region_fact f
                           where f.region = (select r.id from pgonce.region r where r.is_self)
                             and f.epoch = (select i.epoch from pgonce.installation i) order by f.seq desc limit 1)
    union all
    select 'transition_seq', greatest(
        (select max(c.seq) from pgonce.transition_command c where c.ctid >= (select p.first from last_pages p where p.name = 'pgonce.transition_command'::regclass)),
        (select max(c.number) from pgonce.transition_timer c where c.ctid >= (select p.first from last_pages p where p.name = 'pgonce.transition_timer'::regclass)))
    union all
    select 'operator_act_number_seq', (select max(o.number) from pgonce.operator_act o))
select format('%s is at %s, and %s is in use', s.name, s.last, u.top) as evidence,
       case s.name when 'outbox_seq' then 'select pgonce._advance_outbox_seq();'
           else format('select setval(''pgonce.%1$s'', greatest(%2$s, nextval(''pgonce.%1$s'')));', s.name, u.top) end as sql
  from (select 'outbox_seq', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.outbox_seq q
        union all select 'job_seq', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.job_seq q
        union all select 'inbox_seq', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.inbox_seq q
        union all select 'lease_number', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.lease_number q
        union all select 'region_seq', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.region_seq q
        union all select 'transition_seq', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.transition_seq q
        union all select 'operator_act_number_seq', case when q.is_called then q.last_value else q.last_value - 1 end from pgonce.operator_act_number_seq q
       ) as s (name, last) join used u on u.name = s.name
 -- On Citus numbers begin with the tenant's epoch.
 where u.top > s.last and to_regclass('pgonce.tenant_epoch') is null order by 1;

-- check: index-invalid
-- severity: critical
-- title: an index of pgonce is invalid
-- why: An invalid unique index enforces nothing, and an invalid index is never read: look-ups walk the table.
select format('%s on %s', x.indexrelid::regclass, x.indrelid::regclass) as evidence,
       format('reindex index %s;', x.indexrelid::regclass) as sql
  from pg_index x join pg_class c on c.oid = x.indrelid
 where c.relnamespace = {schema} and not (x.indisvalid and x.indisready and x.indislive) order by 1 limit 20;

-- check: row-security-off
-- severity: critical
-- title: row level security of a table is off
-- why: Applications read and write this table with their own rights; its policies are what keeps keys, answers and other tenants out of reach.
select format('%s has policies that are not enforced', c.oid::regclass) as evidence,
       format('alter table %s enable row level security;', c.oid::regclass) as sql
  from pg_class c where c.relnamespace = {schema} and not c.relrowsecurity and not c.relispartition
   and exists (select from pg_policy p where p.polrelid = c.oid) order by 1 limit 20;

-- check: grants-too-wide
-- severity: critical
-- title: a role may change tables of pgonce beyond its part
-- why: Who can update or delete intents, markers or cursors by hand can open a second effect, forge an answer or lose events.
select format('%s may %s on %s', case when a.grantee = 0 then 'everyone' else a.grantee::regrole::text end,
           string_agg(lower(a.privilege_type), ', ' order by a.privilege_type), c.oid::regclass) as evidence,
       format('revoke %s on %s from %s;', string_agg(lower(a.privilege_type), ', ' order by a.privilege_type), c.oid::regclass,
           case when a.grantee = 0 then 'public' else a.grantee::regrole::text end) as sql
  from pg_class c cross join lateral aclexplode(c.relacl) a
 where c.relnamespace = {schema} and c.relkind in ('r', 'p', 'v', 'S') and a.grantee <> c.relowner
   and not exists (select from pgonce.role_grant g join pgonce._grants() w on w.part in (g.part, 'every')
                    where g.role = (select r.rolname from pg_roles r where r.oid = a.grantee)
                      and regexp_replace(w.object, '^sequence ', '') = c.oid::regclass::text
                      and lower(a.privilege_type) = any (string_to_array(w.privilege, ', ')))
 group by a.grantee, c.oid order by 1 limit 20;

-- check: schema-create
-- severity: critical
-- title: a role other than the owner may create objects in the schema
-- why: An overloaded function or operator beside pgonce's own can be called in place of it, with the caller's rights.
select format('%s may create in schema %s', case when a.grantee = 0 then 'everyone' else a.grantee::regrole::text end, n.nspname) as evidence,
       format('revoke create on schema %I from %s;', n.nspname, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end) as sql
  from pg_namespace n cross join lateral aclexplode(n.nspacl) a
 where n.oid = {schema} and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner order by 1 limit 20;

-- check: owner-differs
-- severity: critical
-- title: an object of pgonce belongs to another role than its tables
-- why: A function has its owner's rights. Under a superuser it passes the isolation of tenants; under another role it fails as soon as that role loses a right, and no upgrade can replace it.
select format('%s belongs to %I, and %I owns pgonce.intent', x.object, pg_get_userbyid(x.owner), o.rolname) as evidence,
       case when x.is_code and l.object is null then null else format('alter %s owner to %I;', x.object, o.rolname) end as sql,
       -- No SQL: a stranger's code must be read before it is given the rights of another role.
       case when x.is_code and l.object is null
            then format('read it, as pgonce did not load it so; then drop it, or alter %s owner to %I', x.object, o.rolname) end as command
  from (select 'schema ' || n.nspname, n.nspowner, false from pg_namespace n
         where n.oid = {schema} and n.nspowner <> 'pg_database_owner'::regrole
        union all
        -- Indexes and sequences of columns follow their tables.
        select case c.relkind when 'c' then 'type ' when 'v' then 'view ' when 'S' then 'sequence ' else 'table ' end || c.oid::regclass, c.relowner, c.relkind = 'v'
          from pg_class c where c.relnamespace = {schema} and c.relkind in ('r', 'p', 'v', 'S', 'c')
           and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and c.relkind = 'S' and d.deptype in ('a', 'i'))
        union all
        select 'type ' || t.oid::regtype, t.typowner, false from pg_type t where t.typnamespace = {schema} and t.typtype in ('e', 'd')
        union all
        select 'function ' || p.oid::regprocedure, p.proowner, true from pg_proc p where p.pronamespace = {schema} and p.prokind in ('f', 'p')
       ) as x (object, owner, is_code)
  join pg_class i on i.oid = 'pgonce.intent'::regclass join pg_roles o on o.oid = i.relowner cross join pgonce.routines r
  left join {definitions} as l (object, digest) on l.object = x.object and l.digest = r.definitions ->> l.object
 where x.owner <> i.relowner order by 1 limit 20;

-- check: granted-role-superuser
-- severity: warning
-- title: a role that does a part of the work is a superuser, or bypasses row level security
-- why: Grants and policies do not hold for it: an injected statement reads and changes everything.
select format('role %s does part %s', r.rolname, g.part) as evidence,
       format('alter role %I nosuperuser nobypassrls;', r.rolname) as sql
  from pgonce.role_grant g join pg_roles r on r.rolname = g.role where r.rolsuper or r.rolbypassrls order by 1 limit 20;

-- check: transition-guard
-- severity: warning
-- title: the guard of a transition cannot be called for who sends its command
-- why: A guard runs with all rights of the sender, so it must belong to the owner of pgonce, a superuser, the sender or a member of the sender's role. Otherwise the command is refused, and a timer fires in vain.
select format('machine %s, from %L to %L: %s', r.machine, r.from_state, r.to_state,
           case when f.oid is null then format('there is no %s(text, text, jsonb)', r.guard)
               else format('%s belongs to %I', f.oid::regprocedure, pg_get_userbyid(f.proowner)) end) as evidence,
       -- No SQL: a stranger's code must be read before it is given the rights of another role.
       case when f.oid is null then 'create it again, or call pgonce.define_transition with another guard or none'
            else format('read it; if it may run with the rights of %I: alter function %s owner to %I', pg_get_userbyid(o.relowner),
                f.oid::regprocedure, pg_get_userbyid(o.relowner)) end as command
  from pgonce.transition_rule r join pg_class o on o.oid = 'pgonce.intent'::regclass
  left join pg_proc f on f.oid = to_regprocedure(r.guard || '(text, text, jsonb)')
 where r.guard is not null and (f.oid is null or not pg_has_role(f.proowner, o.relowner, 'member')
   and not coalesce((select bool_and(pg_has_role(f.proowner, s.oid, 'member')) from pgonce.role_grant g
                       join pg_roles s on s.rolname = g.role where g.part = 'app'), false)) order by 1 limit 20;

-- check: autovacuum-table
-- severity: warning
-- title: autovacuum is disabled for a table of pgonce
-- why: Dead rows stay, look-ups slow down, and in the end transaction ids run out.
select format('%s has autovacuum_enabled = off', c.oid::regclass) as evidence,
       format('alter table %s reset (autovacuum_enabled);', c.oid::regclass) as sql
  from pg_class c cross join lateral pg_options_to_table(c.reloptions) o
 where c.relnamespace = {schema} and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean order by 1 limit 20;

-- check: table-bloat
-- severity: warning
-- title: a table of pgonce has more dead rows than live ones
-- why: Vacuum does not keep up: claims, relays and purges walk rows that nobody can see.
select format('%s: %s dead, %s live, last autovacuum %s', s.relid::regclass, s.n_dead_tup, s.n_live_tup,
           coalesce(date_trunc('second', s.last_autovacuum)::text, 'never')) as evidence,
       format('vacuum (analyze) %s;', s.relid::regclass) as sql
  from pg_stat_all_tables s join pg_class c on c.oid = s.relid
 where c.relnamespace = {schema} and s.n_dead_tup > 20000 and s.n_dead_tup > s.n_live_tup order by s.n_dead_tup desc limit 20;

-- check: statistics-missing
-- severity: warning
-- title: a large table of pgonce was never analyzed
-- why: The planner guesses, and may choose to walk the table for a look-up of one row. This happens after a restore or an upgrade.
select format('%s: %s', c.oid::regclass, pg_size_pretty(pg_relation_size(c.oid))) as evidence,
       format('analyze %s;', c.oid::regclass) as sql
  from pg_class c where c.relnamespace = {schema} and c.relkind = 'r' and c.reltuples < 0 and pg_relation_size(c.oid) > 8 * 1024 * 1024
 order by pg_relation_size(c.oid) desc limit 20;

-- check: projection-not-unique
-- severity: critical
-- title: the table of a projection has no unique key
-- why: Two consumers that apply events of one entity at the same time both insert its row.
select format('projection %s writes to %s, which has no unique index', p.projection, p.into_table) as evidence,
       format('alter table %s add primary key (COLUMNS);', p.into_table) as sql
  from pgonce.projection p
 where to_regclass(p.into_table) is not null
   and not exists (select from pg_index x where x.indrelid = to_regclass(p.into_table) and x.indisunique and x.indisvalid and x.indimmediate)
 order by 1 limit 20;
