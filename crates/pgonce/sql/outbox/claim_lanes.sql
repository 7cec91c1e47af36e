-- pgonce.claim_lanes(p_consumer, p_owner, p_lease): a relay asks for its share of a consumer's
--          lanes, and renews those it holds. To be called first in a transaction, again and again,
--          well before the lease runs out.
-- answers  every lane that p_owner holds now: its epoch, and the place from which to read where the
--          epoch is new. surplus: more than its share; finish what was read, then give it back.
-- locks    the rows of the lanes it takes; never waits for another relay
-- writes   owner, epoch and lease of lanes that nobody holds, or whose lease has run out
-- raises   42704 no such consumer; P4031 it was evicted; 22023 bad owner or lease
create or replace function pgonce.claim_lanes(p_consumer text, p_owner text, p_lease interval)
returns table (lane smallint, epoch bigint, place text, surplus boolean)
language plpgsql volatile set search_path = ''
as $$
declare
    v_consumer pgonce.outbox_consumer := pgonce.known_consumer(p_consumer);
    v_share    bigint;
    v_held     bigint;
begin
    if coalesce(p_owner, '') = '' or (p_lease > interval '0') is not true then
        raise exception 'a relay needs a name and a lease that is positive' using errcode = '22023',
            hint = 'For example: pgonce.claim_lanes(''billing'', ''host-7'', interval ''10 seconds'').';
    elsif v_consumer.evicted_at is not null then
        raise exception 'consumer "%" was evicted: %', p_consumer, v_consumer.evicted_why using errcode = 'P4031',
            detail = format('Evicted at %s; events that it had not read may be gone.', v_consumer.evicted_at),
            hint = 'Let it read on with pgonce.replay, or drop it.';
    end if;
    perform pgonce.rebase_outbox();
    perform pgonce.insist_on_durable_commit();
    insert into pgonce.outbox_relay (consumer, owner, until) values (p_consumer, p_owner, pgonce.now() + p_lease)
    on conflict on constraint one_row_per_relay do update set until = excluded.until;
    delete from pgonce.outbox_relay r where r.consumer = p_consumer and r.until <= pgonce.now() - interval '1 day';
    select ceil(16.0 / count(*)) into v_share from pgonce.outbox_relay r
     where r.consumer = p_consumer and r.until > pgonce.now();

    update pgonce.outbox_cursor c set lease_until = pgonce.now() + p_lease
     where c.consumer = p_consumer and c.owner = p_owner and c.epoch >= pgonce.timeline() << 41;
    get diagnostics v_held = row_count;
    with free as (
        select f.lane from pgonce.outbox_cursor f
         where f.consumer = p_consumer
           and (f.owner is null or f.lease_until <= pgonce.now()
                or f.owner = p_owner and f.epoch < pgonce.timeline() << 41)
         order by f.lane limit greatest(v_share - v_held, 0)
           for update skip locked
    )
    update pgonce.outbox_cursor c
       set owner = p_owner, epoch = pgonce.next_fence(c.epoch, true), lease_until = pgonce.now() + p_lease
      from free where c.consumer = p_consumer and c.lane = free.lane;
    return query
        select c.lane, c.epoch, c.place::text, row_number() over (order by c.lane) > v_share
          from pgonce.outbox_cursor c
         where c.consumer = p_consumer and c.owner = p_owner and c.epoch >= pgonce.timeline() << 41
         order by c.lane;
end
$$;
