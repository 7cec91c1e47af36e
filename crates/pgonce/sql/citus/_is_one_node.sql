-- pgonce._is_one_node(): does whatever a transaction writes here commit together with pgonce's tables?
-- answers  true where Citus is not loaded; else not true: then pgonce._assert_one_node looks closer
-- note     inlined into claims: one look at a setting. `pgonce migrate up` puts true here where pgonce's tables are
--          distributed, or where the owner says that no command writes distributed tables
create or replace function pgonce._is_one_node()
returns boolean
language sql stable parallel safe
return current_setting('citus.shard_count', true) is null;
