-- Distributes pgonce's tables by tenant. Statements of delegated functions compare the tenant with the argument as it is:
-- Citus takes one with a collation of its own for another tenant. So the twins and what is loaded on Citus leave it out.
-- Run between the tables and the routines: Citus moves no table that functions
-- depend on. {colocate} is the table of the user's that they are placed with, or 'default'.
do $$
declare
    v_existing text;
    v_has_rows boolean;
begin
    -- What stays behind must be empty: it could not be used any more.
    for v_existing in select t from unnest(array['outbox', 'parked', 'inbox_marker', 'inbox_message', 'inbox_cursor', 'projection',
        'ledger_account', 'transition_entity', 'job', 'import', 'external_reference', 'tenant_binding', 'role_grant', 'outbox_subscription']) t
    loop
        execute format('select exists (select from pgonce.%I)', v_existing) into v_has_rows;
        if v_has_rows then
            raise exception 'pgonce.% has rows and cannot be distributed', v_existing using errcode = 'P4105',
                hint = 'On Citus commands, leases and locks work; see the page "Scaling out".';
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
select create_distributed_table('pgonce.intent', 'tenant', colocate_with => {colocate});
select create_distributed_table('pgonce.suppressed', 'tenant', colocate_with => 'pgonce.intent');
select create_distributed_table('pgonce.tenant_epoch', 'tenant', colocate_with => 'pgonce.intent');
select create_reference_table('pgonce.scope');
