-- The database checks every change of an intent: only the steps of the protocol are possible,
-- for functions, drivers and hands alike.
-- raises   P4099 with the step that was tried
create or replace function pgonce._check_transition()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if (new.tenant, new.scope, new.key) is distinct from (old.tenant, old.scope, old.key)
       or new.fingerprint <> old.fingerprint or new.fence < old.fence
       or new.attempts < old.attempts or new.first_at <> old.first_at
       -- Only what has an expiry can be purged: what is unfinished never gets one.
       or new.status in ('processing', 'failed_retryable') and new.expires_at is not null
       or (case
            when old.gone_at is not null then true
            when new.gone_at is not null then old.status <> new.status or old.expires_at is null
            when old.status = 'processing' and new.status = 'processing'
                -- To ask a probe again that has failed is no further attempt.
                then (new.fence = old.fence) <> (new.attempts = old.attempts) and old.failure_code is distinct from 'probe_failed'
                    or new.fence = old.fence and new.attempts <> old.attempts
            when old.status = 'processing' then new.fence > old.fence and new.fence % 2 = 0
            when old.status = 'failed_retryable' then new.fence <= old.fence
            else true
          end)
    then
        -- What another region finished: pgonce._merge_intent. (A server of Citus has no such table.)
        if to_regclass('pgonce.region_fact') is not null then
            if exists (select from pgonce.region_fact f where f.tenant = new.tenant and f.scope = new.scope and f.key = new.key
                 and f.at = coalesce(new.last_at, new.first_at) and (f.record ->> 'fence')::bigint = new.fence) then
                return new;
            end if;
        end if;
        raise exception 'an intent cannot go from % (fence %) to % (fence %)',
            old.status, old.fence, new.status, new.fence using errcode = 'P4099',
            hint = 'Use the functions of pgonce; they know the allowed steps.';
    end if;
    return new;
end
$$;
create or replace trigger every_transition_is_checked
    before update on pgonce.intent
    for each row execute function pgonce._check_transition();
