-- pgonce.create_subscription(p_subscription, p_from, ...): creates a subscription: it gets every event of the
--          log that its filters let through, with a cursor of its own.
-- answers  nothing
-- locks    nothing
-- writes   the subscription, a cursor for each lane, and a row of pgonce.operator_act. p_from 'start' begins with the oldest event that is
--          kept, 'now' with what commits from now on. p_topics, p_types and p_tenants are patterns with *;
--          null: all; not an empty list. p_max_attempts, p_backoff and p_max_backoff control retries; p_dead_limit is how many
--          events may be parked, p_when_full what happens then: 'stop' (the lane waits) or 'discard'
--          (recorded as skipped)
-- raises   42710 it exists; 22023 or 23514 a value that does not fit; 25001 'now' in a transaction that has
--          written, where the log came from another server
-- example  select pgonce.create_subscription('billing', 'start', p_topics => '{orders}');
create or replace function pgonce.create_subscription(p_subscription text, p_from text default 'start',
    p_topics text[] default null, p_types text[] default null, p_tenants text[] default null,
    p_max_attempts integer default 30, p_backoff interval default interval '1 second',
    p_max_backoff interval default interval '10 minutes', p_dead_limit integer default 10000,
    p_when_full text default 'stop')
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_cursor pgonce.outbox_position;
begin
    if p_subscription is null or (p_from collate "C" in ('start', 'now')) is not true then
        raise exception 'a subscription needs a name, and begins with ''start'' or ''now'', not %',
            coalesce(quote_literal(p_from), 'null') using errcode = '22023',
            hint = 'For example: select pgonce.create_subscription(''billing'', ''now'').';
    end if;
    if p_from collate "C" = 'now' or pg_current_xact_id_if_assigned() is null then
        perform pgonce._rebase_outbox();
    end if;
    perform pgonce._record_watermark();
    insert into pgonce.outbox_subscription (subscription, topics, types, tenants, max_attempts, backoff,
        max_backoff, dead_limit, when_full, created_at)
    values (p_subscription, pgonce._like_patterns(p_topics), pgonce._like_patterns(p_types), pgonce._like_patterns(p_tenants),
        p_max_attempts, p_backoff, p_max_backoff, p_dead_limit, p_when_full, pgonce.now())
    on conflict on constraint one_row_per_subscription do nothing;
    if not found then
        raise exception 'there is a subscription "%" already', p_subscription using errcode = '42710',
            hint = 'Change it with pgonce.alter_subscription, or take another name.';
    end if;
    v_cursor := row(0, '1:1:', null, null)::pgonce.outbox_position;
    if p_from collate "C" = 'now' then
        v_cursor.seen := pgonce._others_snapshot();  -- what this transaction publishes commits from now on
        v_cursor.floor := pgonce._outbox_floor(v_cursor.seen);
    end if;
    insert into pgonce.outbox_cursor (subscription, lane, cursor, advanced_at)
    select p_subscription, n, v_cursor, pgonce.now() from generate_series(0, 15) n;
    perform pgonce._audit_act('create', 'outbox ' || p_subscription, null, 'from ' || p_from);
end
$$;
