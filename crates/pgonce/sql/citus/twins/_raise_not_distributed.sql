-- The trigger of tables that stay on the coordinator of Citus: what is written there could not commit with a command.
-- raises   P4105, always
create or replace function pgonce._raise_not_distributed()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'pgonce.% is not distributed: this part of pgonce does not work on Citus', tg_table_name using errcode = 'P4105',
        detail = 'What is written to the coordinator and to a worker commits in two steps.',
        hint = 'On Citus commands, leases, locks, accepted messages, the ledger, transitions, jobs and events work; see the page "Scaling out".';
end
$$;
