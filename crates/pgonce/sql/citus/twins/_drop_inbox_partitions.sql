-- pgonce._drop_inbox_partitions on Citus: see pgonce._create_inbox_partitions there.
-- answers  0
create or replace function pgonce._drop_inbox_partitions()
returns integer
language sql stable set search_path = pg_catalog, pg_temp
return 0;
