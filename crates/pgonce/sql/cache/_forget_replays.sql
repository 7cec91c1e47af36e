-- The trigger of answers that are removed before their expiry, by pgonce.intervene or by hand: caches must forget them.
-- writes   pgonce.installation: which transaction did so last, once for each
-- locks    the row of pgonce.installation: such transactions come one after the other
-- note     all cached answers are forgotten with the one, since such acts are rare
create or replace function pgonce._forget_replays()
returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._installation_epoch();  -- makes the row where there is none yet
    update pgonce.installation i set evicted_by = pg_current_xact_id()
     where i.evicted_by <> pg_current_xact_id();
    return null;
end
$$;
revoke execute on function pgonce._forget_replays() from public;
create or replace trigger removed_answers_are_forgotten
    after update or delete on pgonce.intent
    for each row when (old.status = 'succeeded' and old.gone_at is null and old.expires_at > pgonce.now())
    execute function pgonce._forget_replays();
create or replace trigger all_answers_are_forgotten
    after truncate on pgonce.intent
    for each statement execute function pgonce._forget_replays();
