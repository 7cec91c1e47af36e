-- pgonce._claim_lanes(p_subscription, p_owner, p_lease): a relay asks for its share of a subscription's
--          lanes, and renews those it holds. To be called first in a transaction, again and again,
--          well before the lease runs out.
-- answers  every lane that p_owner holds now: its epoch, and the cursor from which to read where the
--          epoch is new. surplus: more than its share; finish what was read, then give it back.
-- locks    the rows of the lanes it takes; never waits for another relay
-- writes   owner, epoch and lease of lanes that nobody holds, or whose lease has run out; a row of pgonce.outbox_watermark, so that a long
--          window that begins now says how much of it is over
-- raises   42704 no such subscription; P4031 it was evicted; 22023 bad owner or lease; 42501 the session's role is bound to a
--          tenant: it would read past the events of all others
create or replace function pgonce._claim_lanes(p_subscription text, p_owner text, p_lease interval)
returns table (lane smallint, epoch bigint, cursor text, surplus boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgonce.outbox_subscription := pgonce._require_subscription(p_subscription);
    v_share    bigint;
    v_held     bigint;
begin
    perform pgonce._refuse_bound('a subscription belongs');
    if coalesce(p_owner, '') = '' or (p_lease > interval '0') is not true then
        raise exception 'a relay needs a name and a lease that is positive' using errcode = '22023',
            hint = 'For example: pgonce._claim_lanes(''billing'', ''host-7'', interval ''10 seconds'').';
    elsif v_subscription.evicted_at is not null then
        raise exception 'subscription "%" was evicted: %', p_subscription, v_subscription.evicted_why using errcode = 'P4031',
            detail = format('Evicted at %s; events that it had not read may be gone.', v_subscription.evicted_at),
            hint = 'Let it read on with pgonce.replay, or drop it.';
    end if;
    perform pgonce._rebase_outbox();
    perform pgonce._record_watermark();
    perform pgonce._force_durable_commit();
    insert into pgonce.outbox_relay (subscription, owner, until) values (p_subscription, p_owner, pgonce.now() + p_lease)
    on conflict on constraint one_row_per_relay do update set until = excluded.until;
    delete from pgonce.outbox_relay r where r.subscription = p_subscription collate "C" and r.until <= pgonce.now() - interval '1 day';
    select ceil(16.0 / count(*)) into v_share from pgonce.outbox_relay r
     where r.subscription = p_subscription collate "C" and r.until > pgonce.now();

    update pgonce.outbox_cursor c
       set lease_until = pgonce.now() + p_lease, published = coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0)
     where c.subscription = p_subscription collate "C" and c.owner = p_owner and c.epoch >= pgonce._first_fence();
    get diagnostics v_held = row_count;
    with free as (
        select f.lane from pgonce.outbox_cursor f
         where f.subscription = p_subscription collate "C"
           and (f.owner is null or f.lease_until <= pgonce.now()
                or f.owner = p_owner and f.epoch < pgonce._first_fence())
         order by f.lane limit greatest(v_share - v_held, 0)
           for update skip locked
    )
    update pgonce.outbox_cursor c
       set owner = p_owner, epoch = pgonce._next_fence(c.epoch, true), lease_until = pgonce.now() + p_lease
      from free where c.subscription = p_subscription collate "C" and c.lane = free.lane;
    return query
        select c.lane, c.epoch, c.cursor::text, row_number() over (order by c.lane) > v_share
          from pgonce.outbox_cursor c
         where c.subscription = p_subscription collate "C" and c.owner = p_owner and c.epoch >= pgonce._first_fence()
         order by c.lane;
end
$$;
