-- pgonce._forget_attempts(): the history of an intent goes with its record. (Trigger.)
-- writes   removes rows of pgonce.attempt
create or replace function pgonce._forget_attempts()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgonce.attempt a where a.tenant = old.tenant and a.scope = old.scope and a.key = old.key;
    return null;
end
$$;
-- One attempt that nobody acted on (an operator's act leaves an odd fence) has no history: most of what is purged.
create or replace trigger attempts_go_with_their_intent
    after delete on pgonce.intent
    for each row when (old.attempts > 1 or old.fence > 1 and old.fence % 2 = 1) execute function pgonce._forget_attempts();
