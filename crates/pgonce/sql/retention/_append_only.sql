-- pgonce._append_only(): what was recorded in a ledger, a timeline or as an act stays as it is, for the owner too. (Triggers.)
-- raises   P4079, always; the trigger's argument is the hint
create or replace function pgonce._append_only()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'pgonce.% is append-only: % was refused', tg_table_name, lower(tg_op) using errcode = 'P4079', hint = tg_argv[0];
end
$$;
create or replace trigger groups_stay before update or delete or truncate on pgonce.ledger_group
    for each statement execute function pgonce._append_only('To undo a group, record its reversal: pgonce.ledger_reverse.');
create or replace trigger entries_stay before update or delete or truncate on pgonce.ledger_entry
    for each statement execute function pgonce._append_only('To undo a group, record its reversal: pgonce.ledger_reverse.');
create or replace trigger acts_stay before update or delete or truncate on pgonce.operator_act
    for each statement execute function pgonce._append_only('What was done stays known.');
create or replace trigger accounts_stay before delete or truncate on pgonce.ledger_account
    for each statement execute function pgonce._append_only('Close the account: pgonce.ledger_close.');
create or replace trigger what_an_account_is_stays
    before update of tenant, account, shard, shards, currency, normal, opened_at on pgonce.ledger_account
    for each statement execute function pgonce._append_only('Open another account: pgonce.ledger_open.');
create or replace trigger pending_groups_stay before delete or truncate on pgonce.ledger_pending
    for each statement execute function pgonce._append_only('Void the group: pgonce.ledger_settle.');
create or replace trigger settled_groups_stay before update on pgonce.ledger_pending
    for each row when (old.state <> 'pending')
    execute function pgonce._append_only('To undo a group, record its reversal: pgonce.ledger_reverse.');
create or replace trigger commands_stay before update or delete or truncate on pgonce.transition_command
    for each statement execute function pgonce._append_only('Send a command that moves the entity on: pgonce.transition.');
