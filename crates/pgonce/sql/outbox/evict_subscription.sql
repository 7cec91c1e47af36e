-- pgonce.evict_subscription(p_subscription, p_reason): a subscription no longer holds the log. Its relays stop, and
--          are told why; pgonce.replay lets it read on with what is kept then.
-- answers  true: it was not evicted before
-- raises   42704 no such subscription; 22023 no reason given
create or replace function pgonce.evict_subscription(p_subscription text, p_reason text)
returns boolean
language plpgsql volatile set search_path = ''
as $$
begin
    if coalesce(p_reason, '') = '' then
        raise exception 'an eviction needs a reason' using errcode = '22023',
            hint = 'Its relays are told the reason, and so is whoever looks at pgonce.outbox_backlog.';
    end if;
    perform pgonce._require_subscription(p_subscription);
    perform from pgonce.outbox_cursor c where c.subscription = p_subscription order by c.lane for update;
    update pgonce.outbox_subscription c set evicted_at = pgonce.now(), evicted_why = left(p_reason, 1000)
     where c.subscription = p_subscription and c.evicted_at is null;
    if not found then
        return false;
    end if;
    update pgonce.outbox_cursor c set epoch = pgonce._next_fence(c.epoch, true), owner = null, lease_until = null
     where c.subscription = p_subscription;
    return true;
end
$$;
