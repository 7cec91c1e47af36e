-- pgonce.create_subscription on Citus: as outbox/create_subscription.sql; it is written on every server, with the queue that its events
--          travel in.
-- writes   the subscription and a row of pgonce.job_queue. It gets what is published by statements that see it
-- raises   42710 it exists; 22023 or 23514 a value that does not fit; P4105 p_from 'start', which needs a log, or a limit of dead letters
create or replace function pgonce.create_subscription(p_subscription text, p_from text default 'start',
    p_topics text[] default null, p_types text[] default null, p_tenants text[] default null,
    p_max_attempts integer default 30, p_backoff interval default interval '1 second',
    p_max_backoff interval default interval '10 minutes', p_dead_limit integer default 10000,
    p_when_full text default 'stop')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   text := 'outbox/' || p_subscription;
    v_topics  text[] := pgonce._like_patterns(p_topics);
    v_types   text[] := pgonce._like_patterns(p_types);
    v_tenants text[] := pgonce._like_patterns(p_tenants);
    v_now     timestamptz := pgonce.now();
begin
    if (octet_length(v_queue) between 8 and 200) is not true or (p_from collate "C" in ('start', 'now')) is not true then
        raise exception 'a subscription needs a name of 1 to 193 bytes, and begins with ''now'', not %',
            coalesce(quote_literal(p_from), 'null') using errcode = '22023',
            hint = 'For example: select pgonce.create_subscription(''billing'', ''now'').';
    elsif p_from collate "C" = 'start' then
        raise exception 'on Citus a subscription gets what is published from now on' using errcode = 'P4105',
            detail = 'Events are kept for the subscriptions that exist when they are published; there is no log to read from its start.',
            hint = 'Create it with p_from => ''now'', or --from now.';
    end if;
    perform pgonce._refuse_dead_limit(p_dead_limit, p_when_full);
    insert into pgonce.outbox_subscription (subscription, topics, types, tenants, max_attempts, backoff, max_backoff, dead_limit,
        when_full, created_at)
    values (p_subscription, v_topics, v_types, v_tenants, p_max_attempts, p_backoff, p_max_backoff, p_dead_limit, p_when_full, v_now)
    on conflict (subscription) do nothing;
    if not found then
        raise exception 'there is a subscription "%" already', p_subscription using errcode = '42710',
            hint = 'Change it with pgonce.alter_subscription, or take another name.';
    end if;
    -- What a transaction published that was open while one of this name was dropped.
    perform pgonce._delete_events(v_queue);
    insert into pgonce.job_queue (tenant, queue, max_attempts, backoff, max_backoff, keep, defined_at)
    values ('', v_queue, p_max_attempts, p_backoff, p_max_backoff, interval '0', v_now)
    on conflict (tenant, queue) do update
       set max_attempts = excluded.max_attempts, backoff = excluded.backoff, max_backoff = excluded.max_backoff,
           defined_at = excluded.defined_at;
end
$$;
