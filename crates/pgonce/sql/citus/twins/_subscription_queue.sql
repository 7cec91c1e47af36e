-- pgonce._subscription_queue(p_subscription): on Citus, the queue that the events of a subscription travel in, for its relays.
-- raises   42704 no such subscription; P4031 it was evicted
create or replace function pgonce._subscription_queue(p_subscription text)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
begin
    if v_row.evicted_at is not null then
        raise exception 'subscription "%" was evicted: %', p_subscription, v_row.evicted_why using errcode = 'P4031',
            detail = format('Evicted at %s; nothing was kept for it since then.', v_row.evicted_at),
            hint = 'Drop it, and create it again where somebody wants its events.';
    end if;
    return 'outbox/' || p_subscription;
end
$$;
