-- pgonce._system_identifier(): which PostgreSQL cluster this is. A dump that is restored elsewhere
--          finds another; a standby has its primary's.
-- note     inlined: with a sub-select it would be planned anew for every call
create or replace function pgonce._system_identifier()
returns bigint
language sql volatile
return (pg_control_system()).system_identifier;
