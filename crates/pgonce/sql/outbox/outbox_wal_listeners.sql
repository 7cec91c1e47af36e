-- pgonce.outbox_wal_listeners: relays that listen to the write-ahead log, and how much of it is retained for
--          them.
-- note     a slot ends with its relay's connection. What is retained is what the oldest open transaction has
--          needed since it began
-- example  select slot, pid, held_back from pgonce.outbox_wal_listeners;
create or replace view pgonce.outbox_wal_listeners as
select s.slot_name::text as slot, s.active_pid as pid,
       pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
           s.restart_lsn)::bigint as held_back, s.wal_status
  from pg_catalog.pg_replication_slots s
 where s.slot_name ^@ 'pgonce_tail_' and s.database = current_database();
