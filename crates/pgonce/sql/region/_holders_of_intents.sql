-- pgonce._holders_of_intents(p_of): who holds locks on the tables that regions change.
-- answers  null where nobody does; else a text that names each
-- note     p_of: only those of these transactions that still write, as pg_locks names them, with commas
create or replace function pgonce._holders_of_intents(p_of text default null)
returns text
language sql stable set search_path = pg_catalog, pg_temp
return (
    select string_agg(distinct case when l.pid is null then 'a prepared transaction (pg_prepared_xacts)'
               else concat_ws(' ', 'pid', l.pid, a.usename, a.state, 'since', a.xact_start) end, '; ')
      from pg_catalog.pg_locks l
      left join pg_catalog.pg_stat_activity a on a.pid = l.pid
     where l.granted and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
       and l.pid is distinct from pg_backend_pid()
       and case when p_of is null then l.relation in ('pgonce.intent'::regclass, 'pgonce.region_fact'::regclass)
                else l.relation = 'pgonce.intent'::regclass and l.mode = 'RowExclusiveLock'
                     and l.virtualtransaction = any (string_to_array(p_of, ',')) end);
