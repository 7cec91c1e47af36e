-- pgonce._writers_of_intents(): the transactions that have written intents and have not ended.
-- answers  their numbers as pg_locks has them, with commas; null where there are none
-- note     others may be at work on an intent too. They have not written, and when they do pgonce._check_region refuses them
create or replace function pgonce._writers_of_intents()
returns text
language sql stable set search_path = pg_catalog, pg_temp
return (
    select string_agg(distinct l.virtualtransaction, ',')
      from pg_catalog.pg_locks l
     where l.granted and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
       and l.pid is distinct from pg_backend_pid() and l.relation = 'pgonce.intent'::regclass and l.mode = 'RowExclusiveLock');
