-- pgonce.create_consumer(p_consumer, …): somebody who gets every event of the log, with a place
--          of its own in it.
-- writes   the consumer, and a cursor for each lane. p_from 'start' begins with the oldest event
--          that is kept, 'now' with what commits from now on. p_topics, p_types and p_tenants are
--          patterns with *; null: all. p_max_attempts, p_backoff and p_backoff_at_most say how an
--          event that fails is tried again; p_dead_limit how many events may be parked for it,
--          p_when_full what then: 'stop' (the lane waits) or 'discard' (recorded as skipped)
-- raises   42710 it is there already; 22023 or 23514 a value that does not fit; 25001 'now' in a
--          transaction that has written, where the log came from another server
create or replace function pgonce.create_consumer(p_consumer text, p_from text default 'start',
    p_topics text[] default null, p_types text[] default null, p_tenants text[] default null,
    p_max_attempts integer default 10, p_backoff interval default interval '1 second',
    p_backoff_at_most interval default interval '10 minutes', p_dead_limit integer default 10000,
    p_when_full text default 'stop')
returns void
language plpgsql volatile set search_path = ''
as $$
declare
    v_place pgonce.outbox_place;
begin
    if p_consumer is null or (p_from in ('start', 'now')) is not true then
        raise exception 'a consumer needs a name, and begins with ''start'' or ''now'', not %',
            coalesce(quote_literal(p_from), 'null') using errcode = '22023',
            hint = 'For example: select pgonce.create_consumer(''billing'', ''now'').';
    end if;
    if p_from = 'now' or pg_current_xact_id_if_assigned() is null then
        perform pgonce.rebase_outbox();
    end if;
    perform pgonce.mark_outbox();
    insert into pgonce.outbox_consumer (consumer, topics, types, tenants, max_attempts, backoff,
        backoff_at_most, dead_limit, when_full, created_at)
    values (p_consumer, pgonce.globs(p_topics), pgonce.globs(p_types), pgonce.globs(p_tenants),
        p_max_attempts, p_backoff, p_backoff_at_most, p_dead_limit, p_when_full, pgonce.now())
    on conflict on constraint one_row_per_consumer do nothing;
    if not found then
        raise exception 'there is a consumer "%" already', p_consumer using errcode = '42710',
            hint = 'Change it with pgonce.alter_consumer, or take another name.';
    end if;
    v_place := row(0, '1:1:', null, null)::pgonce.outbox_place;
    if p_from = 'now' then
        v_place.seen := pg_current_snapshot();
        v_place.floor := pgonce.outbox_floor(v_place.seen);
    end if;
    insert into pgonce.outbox_cursor (consumer, lane, place, advanced_at)
    select p_consumer, n, v_place, pgonce.now() from generate_series(0, 15) n;
end
$$;
