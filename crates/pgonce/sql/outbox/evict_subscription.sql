-- pgonce.evict_subscription(p_subscription, p_reason): releases the log from a subscription. Its relays stop
--          and report the reason; pgonce.replay lets it read on with what is kept then.
-- answers  true: it was not evicted before
-- locks    the rows of its lanes
-- writes   the eviction with its reason; a higher epoch for each lane, which fences its relays; a row of
--          pgonce.operator_act
-- raises   42704 no such subscription; 22023 no reason given
-- example  select pgonce.create_subscription('billing');
--          select pgonce.evict_subscription('billing', 'replaced by billing-2');
create or replace function pgonce.evict_subscription(p_subscription text, p_reason text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'an eviction needs a reason' using errcode = '22023',
            hint = 'Its relays report the reason, and pgonce.outbox_backlog shows it.';
    end if;
    perform pgonce._require_subscription(p_subscription);
    perform from pgonce.outbox_cursor c where c.subscription = p_subscription collate "C" order by c.lane for update;
    update pgonce.outbox_subscription c set evicted_at = pgonce.now(), evicted_why = left(p_reason, 1000)
     where c.subscription = p_subscription collate "C" and c.evicted_at is null;
    if not found then
        return false;
    end if;
    update pgonce.outbox_cursor c set epoch = pgonce._next_fence(c.epoch, true), owner = null, lease_until = null
     where c.subscription = p_subscription collate "C";
    perform pgonce._audit_act('evict', 'outbox ' || p_subscription, null, p_reason);
    return true;
end
$$;
