-- Server: settings of the server, its databases and roles that bend what a commit means, and what holds it back.

-- check: fsync-off
-- severity: critical
-- title: the server does not flush its log
-- why: After a crash of the machine acknowledged effects are lost, or the database is damaged.
select 'fsync is off' as evidence, 'alter system set fsync = on; select pg_reload_conf();' as sql where not current_setting('fsync')::boolean;

-- check: full-page-writes-off
-- severity: critical
-- title: torn pages are not repaired after a crash
-- why: A crash in the middle of a page write can damage tables and unique indexes without any error.
select 'full_page_writes is off' as evidence, 'alter system set full_page_writes = on; select pg_reload_conf();' as sql
 where not current_setting('full_page_writes')::boolean;

-- check: autovacuum-off
-- severity: warning
-- title: autovacuum is off
-- why: Dead rows stay, look-ups slow down, and in the end transaction ids run out.
select format('%s is off', s.name) as evidence, format('alter system set %s = on; select pg_reload_conf();', s.name) as sql
  from pg_settings s where s.name in ('autovacuum', 'track_counts') and s.setting = 'off';

-- check: synchronous-commit-off
-- severity: warning
-- title: commits are acknowledged before they are durable
-- why: pgonce makes its own commits durable, whatever the setting; other commits of these sessions can vanish in a crash after they were acknowledged.
select format('%s: synchronous_commit = %s', s.place, s.value) as evidence, s.alter || ' set synchronous_commit = on;' || s.reload as sql
  from {settings} s where s.name = 'synchronous_commit' and s.value in ('off', 'false', 'no', '0') order by 1 limit 20;

-- check: read-only-default
-- severity: warning
-- title: transactions are read-only by default
-- why: Commands of these sessions fail with 25006 unless they begin their transactions read-write.
select format('%s: default_transaction_read_only = %s', s.place, s.value) as evidence, s.alter || ' reset default_transaction_read_only;' || s.reload as sql
  from {settings} s where s.name = 'default_transaction_read_only' and s.value in ('on', 'true', 'yes', '1') order by 1 limit 20;

-- check: isolation-default
-- severity: notice
-- title: transactions are not read committed by default
-- why: It is safe, but concurrent duplicates fail with 40001 and must be retried: callers without a retry loop see errors.
select format('%s: default_transaction_isolation = %s', s.place, s.value) as evidence, s.alter || ' reset default_transaction_isolation;' || s.reload as sql
  from {settings} s where s.name = 'default_transaction_isolation' and s.value <> 'read committed' order by 1 limit 20;

-- check: replication-role
-- severity: critical
-- title: sessions run without triggers
-- why: With session_replication_role = replica no trigger and no foreign key is checked: any change of state passes.
select format('%s: session_replication_role = %s', s.place, s.value) as evidence, s.alter || ' reset session_replication_role;' || s.reload as sql
  from {settings} s where s.name = 'session_replication_role' and s.value <> 'origin' order by 1 limit 20;

-- check: statement-timeout-short
-- severity: warning
-- title: statements are cancelled after less than a second
-- why: A claim that waits for a lock of a concurrent duplicate is cancelled with 57014 instead of answering.
select format('%s: %s = %s', s.place, s.name, s.value) as evidence, format('%s set %s = %L;%s', s.alter, s.name, '30s', s.reload) as sql
  from {settings} s where s.name in ('statement_timeout', 'transaction_timeout')
   and s.value ~ '^[0-9]+(ms)?$' and regexp_replace(s.value, 'ms$', '')::numeric between 1 and 999 order by 1 limit 20;

-- check: idle-timeout-unset
-- severity: notice
-- title: idle transactions are never ended
-- why: A client that vanishes inside its transaction keeps its claim busy, and holds vacuum back, until TCP gives up: minutes to hours.
select 'idle_in_transaction_session_timeout is 0 for the server, this database and every role' as evidence,
       format('alter database %I set idle_in_transaction_session_timeout = %L;', current_database(), '1min') as sql
 where not exists (select from {settings} s where s.name = 'idle_in_transaction_session_timeout' and s.value !~ '^0(ms|s|min)?$');

-- check: tls-off
-- severity: warning
-- title: the server accepts connections from other machines without TLS
-- why: Keys, answers and passwords travel in the clear.
select format('listen_addresses = %s, ssl = off', current_setting('listen_addresses')) as evidence,
       'alter system set ssl = on; -- with server.crt and server.key in the data folder' as sql
 where not current_setting('ssl')::boolean
   and exists (select from regexp_split_to_table(current_setting('listen_addresses'), '[ ,]+') a
                where a not in ('', 'localhost', '::1') and a not like '127.%');

-- check: encoding-sql-ascii
-- severity: warning
-- title: the database does not check the encoding of text
-- why: A key that is not valid UTF-8 can be stored and never be read by clients that expect UTF-8.
select format('database %s has the encoding SQL_ASCII', current_database()) as evidence,
       'dump it, create it again with encoding UTF8, and restore' as command
 where current_setting('server_encoding') = 'SQL_ASCII';

-- check: standby
-- severity: notice
-- title: this server is a standby
-- why: Commands are refused here; what it shows may be behind the primary, so "it has not happened" is not proven here.
select 'pg_is_in_recovery() is true' as evidence, 'give the address of the primary' as command where pg_is_in_recovery();

-- check: slot-inactive
-- severity: warning
-- title: nobody reads a replication slot
-- why: The server keeps its log, and vacuum keeps dead rows, until somebody reads the slot: in the end the disk is full.
select format('slot %s, %s, keeps %s', s.slot_name, s.slot_type, coalesce(pg_size_pretty(w.bytes), 'what follows')) as evidence,
       -- No SQL: only people know whether its reader comes back, and what it has not read is gone with the slot.
       case when s.slot_name ~ '^pgonce_[0-9]+_[0-9]+_to_[0-9]+$'
            then 'let the other region read it: the facts that it keeps are not there yet; where that region never comes back: pgonce region leave'
            else format('start its reader; if it never comes back: select pg_drop_replication_slot(%L)', s.slot_name) end as command
  from pg_replication_slots s
  cross join lateral (select case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) end as bytes) w
 where not s.active and not s.temporary and s.restart_lsn is not null order by 1 limit 20;

-- check: old-transaction
-- severity: warning
-- title: a transaction has been open for more than an hour
-- why: Vacuum removes nothing that it may still see: hot tables of pgonce grow with every change. A claim inside it answers "busy" to every duplicate.
select format('process %s of %s, %s, since %s', a.pid, a.usename, a.state, date_trunc('second', a.xact_start)) as evidence,
       format('select pg_terminate_backend(%s);', a.pid) as sql
  from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
   and a.xact_start < pgonce.now() - interval '1 hour' order by a.xact_start limit 20;

-- check: prepared-transaction
-- severity: warning
-- title: a prepared transaction was never finished
-- why: It keeps its locks and its claims through restarts, and holds vacuum back, until somebody commits it or rolls it back.
select format('%L, by %s, since %s', p.gid, p.owner, date_trunc('second', p.prepared)) as evidence,
       -- No SQL: its coordinator may have committed its other half.
       format('ask its coordinator: commit prepared %L, or rollback prepared %L',
           p.gid, p.gid) as command
  from pg_prepared_xacts p where p.database = current_database() and p.prepared < pgonce.now() - interval '5 minutes'
 order by p.prepared limit 20;

-- check: autocommit-caller
-- severity: warning
-- title: a session seems to claim in autocommit
-- why: An atomic claim lives in its transaction. In autocommit it is over before the work begins: nothing keeps a duplicate out.
select format('process %s of %s (%s): its last statement was a claim, and no transaction is open', a.pid, a.usename, a.application_name) as evidence,
       'turn autocommit off: begin, claim, work, succeed and commit are one transaction; or claim with a lease' as command
  from pg_stat_activity a
 where a.datname = current_database() and a.state = 'idle' and a.pid <> pg_backend_pid()
   -- Up to three arguments, or named ones without a lease: an atomic claim.
   and a.query ~* 'pgonce\.claim(_first)?\s*\([^,()]*,[^,()]*,[^,()]*(\)|,\s*p_(owner|tenant))'
   and a.query !~* '\m(commit|succeed)\M' order by 1 limit 20;

-- check: connections-near-limit
-- severity: warning
-- title: almost all connections are in use
-- why: The next client is refused with 53300: a retry that cannot connect cannot learn that its effect has happened.
select format('%s of %s', n.used, current_setting('max_connections')) as evidence,
       'put a pooler in front, or raise max_connections' as command
  from (select count(*) as used from pg_stat_activity a where a.backend_type = 'client backend') n
 where n.used >= 0.9 * current_setting('max_connections')::int;
