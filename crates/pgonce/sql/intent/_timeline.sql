-- pgonce._timeline(): which life of the database this is; every promotion of a standby begins
--          another.
-- answers  the number of the server's timeline
create or replace function pgonce._timeline()
returns bigint
language sql volatile
return ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
