-- pgonce._ledger_append_only(): what was recorded in a ledger stays as it is, for the owner too. (Triggers.)
-- raises   P4079, always
create or replace function pgonce._ledger_append_only()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the ledger is append-only: % of pgonce.% was refused', lower(tg_op), tg_table_name using errcode = 'P4079',
        hint = 'To undo a group, record its reversal: pgonce.ledger_reverse.';
end
$$;
create or replace trigger groups_stay before update or delete or truncate on pgonce.ledger_group
    for each statement execute function pgonce._ledger_append_only();
create or replace trigger entries_stay before update or delete or truncate on pgonce.ledger_entry
    for each statement execute function pgonce._ledger_append_only();
create or replace trigger audit_stays before update or delete or truncate on pgonce.ledger_audit
    for each statement execute function pgonce._ledger_append_only();
create or replace trigger accounts_stay before delete or truncate on pgonce.ledger_account
    for each statement execute function pgonce._ledger_append_only();
create or replace trigger what_an_account_is_stays
    before update of tenant, account, shard, shards, currency, normal, opened_at on pgonce.ledger_account
    for each statement execute function pgonce._ledger_append_only();
create or replace trigger pending_groups_stay before delete or truncate on pgonce.ledger_pending
    for each statement execute function pgonce._ledger_append_only();
create or replace trigger settled_groups_stay before update on pgonce.ledger_pending
    for each row when (old.state <> 'pending') execute function pgonce._ledger_append_only();
