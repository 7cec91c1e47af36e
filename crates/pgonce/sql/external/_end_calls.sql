-- pgonce._end_calls(): the retention of an intent is over, and its record goes: what its calls did counts for its next life no
--          more. (Trigger.)
-- locks    the calls
-- writes   calls that are decided. What is not may have happened, and is the next life's, too
create or replace function pgonce._end_calls()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update pgonce.external_call c set ended_at = pgonce.now()
     where c.tenant = old.tenant and c.scope = old.scope and c.key = old.key
       and c.status in ('confirmed', 'failed') and c.ended_at is null;
    return null;
end
$$;
-- An atomic success has no calls: most of what is purged. A key that was freed before its retention was over (released, evicted)
-- keeps its calls: they happened.
create or replace trigger calls_end_with_their_intent
    after delete on pgonce.intent
    for each row when (old.fence > 1 and (old.gone_at is not null or old.expires_at <= pgonce.now()))
    execute function pgonce._end_calls();
