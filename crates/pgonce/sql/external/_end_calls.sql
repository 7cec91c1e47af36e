-- pgonce._end_calls(): a record of an intent goes. Where its retention is over, what its calls did counts for its next life no
--          more; where the key was freed before (released, retried, evicted) it still does, as long as the record would have been kept.
--          (Trigger.)
-- locks    the calls
-- writes   calls that are decided. What is not may have happened, and is the next life's, too
create or replace function pgonce._end_calls()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now  timestamptz := pgonce.now();
    v_over boolean := old.gone_at is not null or coalesce(old.expires_at <= v_now, false);
begin
    update pgonce.external_call c
       set ended_at = case when v_over then v_now end,
           -- Each call has a time of its own, which began when it was decided, and may have run out before the command was finished.
           expires_at = case when v_over then c.expires_at else greatest(c.expires_at,
               coalesce(old.expires_at, v_now + (pgonce._contract_of(old.tenant, old.scope, true)).retention)) end
     where c.tenant = old.tenant and c.scope = old.scope and c.key = old.key
       and c.status in ('confirmed', 'failed') and c.ended_at is null;
    return null;
end
$$;
-- An atomic success has no calls: most of what is purged.
create or replace trigger calls_end_with_their_intent
    after delete on pgonce.intent
    for each row when (old.fence > 1 or old.gone_at is null and (old.expires_at > pgonce.now()) is not false)
    execute function pgonce._end_calls();
