-- pgonce._record_attempt(): a new fence ends the attempt of the old one, which goes into the history. (Trigger.)
-- writes   one row of pgonce.attempt; removes those beyond keep_attempts of the contract
-- note     a first success has no fence before it, so it writes nothing here; nor does a probe that failed and is asked again: a
--          long outage of it would take the place of the attempts themselves
create or replace function pgonce._record_attempt()
returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now     timestamptz := pgonce.now();
    v_started timestamptz := coalesce((select max(a.followed_at) from pgonce.attempt a
        where a.tenant = old.tenant and a.scope = old.scope and a.key = old.key), old.first_at);
    v_keep    integer;
begin
    insert into pgonce.attempt (tenant, scope, key, fence, attempt, owner, started_at, ended_at, followed_at, outcome, code, message)
    values (old.tenant, old.scope, old.key, old.fence, old.attempts, old.owner,
        v_started, least(v_now, greatest(v_started, coalesce(old.lease_until, old.last_at))), v_now,
        case when old.status <> 'processing' then old.status::text
             when old.lease_until > v_now then 'interrupted'
             when old.failure_code is null then 'vanished'
             else 'unknown' end,
        old.failure_code, old.failure_message);
    v_keep := (pgonce._contract_of(new.tenant, new.scope, true)).keep_attempts;
    delete from pgonce.attempt a
     where a.tenant = old.tenant and a.scope = old.scope and a.key = old.key
       and a.fence <= (select b.fence from pgonce.attempt b
                        where b.tenant = old.tenant and b.scope = old.scope and b.key = old.key
                        order by b.fence desc offset v_keep limit 1);
    return null;
end
$$;
create or replace trigger followed_attempts_are_kept
    after update on pgonce.intent
    for each row when (old.fence <> new.fence and (old.attempts <> new.attempts or old.status <> new.status)) execute function pgonce._record_attempt();
