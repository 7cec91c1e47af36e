-- pgonce._transition_append_only(): what was decided about a command stays as it is. (Trigger.)
-- raises   P4079, always
create or replace function pgonce._transition_append_only()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'timelines are append-only: % of pgonce.% was refused', lower(tg_op), tg_table_name using errcode = 'P4079',
        hint = 'Send a command that moves the entity on.';
end
$$;
create or replace trigger commands_stay before update or delete or truncate on pgonce.transition_command
    for each statement execute function pgonce._transition_append_only();
