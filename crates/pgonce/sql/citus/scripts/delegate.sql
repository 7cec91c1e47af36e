-- Delegates functions to the server that has the tenant's rows. Run after the routines and their twins.
do $$
declare
    v_name text;
begin
    -- What is still SQL and reads a distributed table must be planned by itself, or it reads an empty one.
    for v_name in select distinct p.oid::regprocedure::text
        from pg_depend d join pg_proc p on p.oid = d.objid join pg_language l on l.oid = p.prolang
       where d.classid = 'pg_proc'::regclass and d.refclassid = 'pg_class'::regclass and l.lanname = 'sql' and p.proconfig is null
         and p.pronamespace = (select c.relnamespace from pg_class c where c.oid = 'pgonce.intent'::regclass)
         and d.refobjid in (select t.logicalrelid from pg_dist_partition t)
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', v_name);
    end loop;
    perform create_distributed_function(p.oid, 'p_tenant', colocate_with => 'pgonce.intent', force_delegation => true)
       from pg_proc p
      where p.pronamespace = (select c.relnamespace from pg_class c where c.oid = 'pgonce.intent'::regclass)
        and p.proname in ('claim', '_claim_fast', '_claim_optimistic', 'claim_first', 'answer_of', 'succeed', 'fail', 'heartbeat',
            'guard', 'release', 'wait', 'lock', 'try_lock', '_count_suppressed', '_purge_tenant',
            'accept', 'accept_batch', '_accept_texts', '_purge_markers',
            'ledger_open', 'ledger_close', 'ledger_post', 'ledger_settle', 'ledger_reverse', 'ledger_balance', 'ledger_statement',
            '_ledger_verify_tenant', 'transition', 'set_timer', '_fire_tenant_timers',
            '_enqueue_tenant_job', '_claim_tenant_jobs', '_finish_tenant_jobs', '_renew_tenant_jobs', 'fail_job', 'cancel_job',
            '_retry_tenant_jobs', '_purge_tenant_jobs', '_publish_tenant_event', '_settle_event');
    -- What stays on the coordinator is not written any more: it could not commit with a command.
    for v_name in select c.oid::regclass::text from pg_class c
       where c.relnamespace = (select i.relnamespace from pg_class i where i.oid = 'pgonce.intent'::regclass)
         and c.relkind in ('r', 'p') and not c.relispartition
         and c.relname not in ('migration', 'routines', 'installation', 'sweep')
         and c.oid not in (select t.logicalrelid from pg_dist_partition t)
    loop
        execute format('create or replace trigger only_what_is_distributed before insert or update or delete on %s '
            'for each statement execute function pgonce._raise_not_distributed()', v_name);
    end loop;
end $$;
