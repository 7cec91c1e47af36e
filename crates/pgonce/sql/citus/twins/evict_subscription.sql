-- pgonce.evict_subscription on Citus: as outbox/evict_subscription.sql: its relays stop, and nothing more is kept for it.
-- writes   the eviction with its reason, on every server. What waits for it stays until it is dropped
create or replace function pgonce.evict_subscription(p_subscription text, p_reason text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text collate "C" := (pgonce._require_subscription(p_subscription)).subscription;
    v_why  text := left(p_reason, 1000);
    v_now  timestamptz := pgonce.now();
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'an eviction needs a reason' using errcode = '22023',
            hint = 'Its relays report the reason, and pgonce.outbox_backlog shows it.';
    end if;
    update pgonce.outbox_subscription c set evicted_at = v_now, evicted_why = v_why
     where c.subscription = v_name and c.evicted_at is null;
    return found;
end
$$;
