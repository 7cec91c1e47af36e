-- pgonce._database_life(): which life of the database this is: the cluster, the database in it and the table of
--          intents. What was restored from a dump, elsewhere, under another name or in place, finds another; a
--          standby has its primary's.
-- note     inlined: with a sub-select it would be planned anew for every call
create or replace function pgonce._database_life()
returns bigint
language sql volatile
return (pg_control_system()).system_identifier
    # (split_part(pg_relation_filepath('pgonce.intent'::regclass), '/', -2)::bigint << 32)
    # 'pgonce.intent'::regclass::oid::bigint;
