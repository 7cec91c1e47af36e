-- pgonce._create_inbox_partitions on Citus: markers have no partitions of days there; each would be a table on every shard.
-- answers  0
create or replace function pgonce._create_inbox_partitions()
returns integer
language sql stable set search_path = pg_catalog, pg_temp
return 0;
