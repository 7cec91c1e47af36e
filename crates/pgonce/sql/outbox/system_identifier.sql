-- pgonce.system_identifier(): which PostgreSQL cluster this is. A dump that is restored elsewhere
--          finds another; a standby has its primary's.
create or replace function pgonce.system_identifier()
returns bigint
language sql volatile
return (select c.system_identifier from pg_control_system() c);
