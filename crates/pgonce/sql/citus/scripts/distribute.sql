-- Distributes pgonce's tables by tenant. Statements of delegated functions compare the tenant with the argument as it is:
-- Citus takes one with a collation of its own for another tenant. So the twins and what is loaded on Citus leave it out.
-- Run between the tables and the routines: Citus moves no table that functions
-- depend on. {colocate} is the table of the user's that they are placed with, or 'default'. Run again it distributes what an
-- older build left on the coordinator.
do $$
declare
    v_existing text;
    v_has_rows boolean;
begin
    -- What stays behind must be empty: it could not be used any more. Subscriptions have cursors in a log, until they are distributed.
    for v_existing in select t from unnest(array['outbox', 'parked', 'inbox_message', 'inbox_cursor', 'projection', 'import',
        'external_reference', 'tenant_binding', 'role_grant', 'outbox_subscription']) t
         where ('pgonce.' || t)::regclass not in (select p.logicalrelid from pg_dist_partition p)
    loop
        execute format('select exists (select from pgonce.%I)', v_existing) into v_has_rows;
        if v_has_rows then
            raise exception 'pgonce.% has rows and cannot be distributed', v_existing using errcode = 'P4105',
                hint = 'On Citus commands, leases, locks, accepted messages, the ledger, transitions, jobs and events work; see the page "Scaling out".';
        end if;
    end loop;
end $$;
-- The epochs of tenants, which move with their rows; see citus/twins/_installation_epoch.sql.
create table if not exists pgonce.tenant_epoch (
    tenant   text collate "C" not null,
    life     bigint not null,
    timeline bigint not null,
    epoch    bigint not null,
    since    timestamptz not null,
    -- Never read: with it Citus has the sequence on every server, also on one that is added later.
    lease    bigint not null default nextval('pgonce.lease_number'),
    constraint one_epoch_per_tenant primary key (tenant)
);
do $$
declare
    v_table text;
    v_with  text := {colocate};
    v_taken boolean;
begin
    if not exists (select from pg_dist_partition p where p.logicalrelid = 'pgonce.transition_timer'::regclass) then
        -- With this Citus has the sequence of timers on every server.
        alter table pgonce.transition_timer alter column number set default nextval('pgonce.transition_seq');
    end if;
    if not exists (select from pg_dist_partition p where p.logicalrelid = 'pgonce.job_live'::regclass) then
        -- Limits hold for each tenant there: nothing counts the jobs of all.
        alter table pgonce.job_live no inherit pgonce.job_running;
        -- The same for jobs; and what a claim of one tenant reads.
        alter table pgonce.job_recheck alter column id set default nextval('pgonce.job_seq');
        create index jobs_ready_by_tenant on pgonce.job_live (tenant, queue, priority desc, id) where state = 'ready';
        create index jobs_due_by_tenant on pgonce.job_live (tenant, due_at) where state in ('scheduled', 'retrying', 'running', 'limited');
    end if;
    for v_table in select t.name
        from unnest(array['intent', 'suppressed', 'tenant_epoch', 'inbox_marker', 'ledger_account', 'ledger_group', 'ledger_entry',
            'ledger_pending', 'transition_entity', 'transition_command', 'transition_timer', 'job', 'job_live', 'job_end', 'job_bucket',
            'job_recheck', 'job_schedule']) with ordinality as t (name, n)
       where not exists (select from pg_dist_partition p where p.logicalrelid = ('pgonce.' || t.name)::regclass)
       order by t.n
    loop
        perform create_distributed_table(('pgonce.' || v_table)::regclass, 'tenant',
            colocate_with => case v_table when 'intent' then v_with else 'pgonce.intent' end);
    end loop;
    if not exists (select from pg_dist_partition p where p.logicalrelid = 'pgonce.outbox_subscription'::regclass) then
        foreach v_table in array array['job_queue', 'job_live', 'job_schedule'] loop
            execute format('select count(*) > 0 from pgonce.%I t where t.queue like ''outbox/%%''', v_table) into v_taken;
            if v_taken then
                raise exception 'pgonce.% has a queue whose name begins with "outbox/"', v_table using errcode = 'P4105',
                    hint = 'On Citus these names are for the events of subscriptions: finish its jobs, and take another name.';
            end if;
        end loop;
        -- What refers to it stays on the coordinator, empty: events travel as jobs.
        alter table pgonce.outbox_cursor drop constraint if exists cursor_has_a_subscription;
        alter table pgonce.outbox_relay drop constraint if exists relay_has_a_subscription;
        alter table pgonce.parked drop constraint if exists parked_has_a_subscription;
    end if;
    for v_table in select t.name
        from unnest(array['scope', 'inbox_contract', 'transition_rule', 'job_queue', 'outbox_subscription']) as t (name)
       where not exists (select from pg_dist_partition p where p.logicalrelid = ('pgonce.' || t.name)::regclass)
    loop
        perform create_reference_table(('pgonce.' || v_table)::regclass);
    end loop;
end $$;
