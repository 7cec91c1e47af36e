-- pgonce._installation_life(): which life of the database this is: the cluster, the database in it, and the tables
--          of pgonce. What was restored from a dump, or upgraded, finds another; a standby has its primary's.
-- note     inlined: with a sub-select it would be planned anew for every call
create or replace function pgonce._installation_life()
returns bigint
language sql volatile
return (pg_control_system()).system_identifier
    # (split_part(pg_relation_filepath('pgonce.installation'::regclass), '/', -2)::bigint << 32)
    # 'pgonce.installation'::regclass::oid::bigint;
