-- pgonce._region_slot(p_reader): the name of the replication slot from which another region reads this one.
-- note     a slot belongs to the whole server, so the database is part of its name
create or replace function pgonce._region_slot(p_reader smallint)
returns name
language sql stable set search_path = pg_catalog, pg_temp
return (select format('pgonce_%s_%s_to_%s', d.oid, (select r.id from pgonce.region r where r.is_self), p_reader)
          from pg_catalog.pg_database d where d.datname = current_database())::name;
