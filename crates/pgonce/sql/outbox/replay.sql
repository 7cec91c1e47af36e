-- pgonce.replay(p_consumer, p_from_seq, p_from_time): lets one consumer read the log again, from a
--          number or a time; also one that was evicted. With neither: from the oldest that is kept.
-- answers  the number of the first event that it will see, as far as they are kept; null: none yet
-- locks    the rows of its lanes
-- writes   every lane of the consumer begins there; relays that hold lanes are fenced and claim again
-- raises   42704 no such consumer; 22023 both a number and a time
-- note     what is parked for the consumer stays parked
create or replace function pgonce.replay(p_consumer text, p_from_seq bigint default null,
    p_from_time timestamptz default null)
returns bigint
language plpgsql volatile set search_path = ''
as $$
declare
    v_first bigint;
begin
    if p_from_seq is not null and p_from_time is not null then
        raise exception 'a replay begins with a number or with a time, not both' using errcode = '22023',
            hint = 'Leave one of them out.';
    end if;
    if pg_current_xact_id_if_assigned() is null then
        perform pgonce.rebase_outbox();
    end if;
    perform pgonce.known_consumer(p_consumer);
    perform from pgonce.outbox_cursor c where c.consumer = p_consumer order by c.lane for update;
    select min(o.seq) into v_first from pgonce.outbox o
     where (p_from_seq is null or o.seq >= p_from_seq) and (p_from_time is null or o.created_at >= p_from_time);
    update pgonce.outbox_consumer c set evicted_at = null, evicted_why = null where c.consumer = p_consumer;
    update pgonce.outbox_cursor c
       set epoch = pgonce.next_fence(c.epoch, true), owner = null, lease_until = null, advanced_at = pgonce.now(),
           -- Somebody may yet commit below the first that is seen now.
           place = row(case when p_from_time is null then greatest(coalesce(p_from_seq, 1) - 1, 0)
               else least(coalesce(v_first - 1, pgonce.outbox_floor(pg_current_snapshot())),
                          pgonce.outbox_floor(pg_current_snapshot())) end,
               '1:1:', null, null)::pgonce.outbox_place
     where c.consumer = p_consumer;
    return v_first;
end
$$;
