-- pgonce._force_durable_commit(): makes this transaction's commit survive a crash, and a
--          failover where a synchronous standby is configured.
-- answers  true
-- raises   P4104 half distributed by Citus: then no commit here is one
-- writes   the setting synchronous_commit, until the end of the transaction, where a role or a
--          database has it off or local: what pgonce acknowledges must not be erased afterwards
create or replace function pgonce._force_durable_commit()
returns boolean
language sql volatile
return case when current_setting('synchronous_commit') in ('off', 'local')
    then set_config('synchronous_commit', 'on', true) is not null else true end
    and (pgonce._is_one_node() or pgonce._assert_one_node());
