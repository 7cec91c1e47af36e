-- pgonce.replay(p_subscription, p_from_seq, p_from_time): lets one subscription read the log again, from a
--          number or a time; also one that was evicted. With neither: from the oldest that is kept.
-- answers  the number of the first event that it will get, as far as they are kept; null: none yet
-- locks    the rows of its lanes
-- writes   every lane of the subscription begins there; relays that hold lanes are fenced and claim again;
--          a row of pgonce.operator_act
-- raises   42704 no such subscription; 22023 both a number and a time
-- note     what is parked for the subscription stays parked. A number that no event has yet: from the next event on
-- example  select pgonce.create_subscription('billing');
--          select pgonce.replay('billing', p_from_seq => 1);
create or replace function pgonce.replay(p_subscription text, p_from_seq bigint default null,
    p_from_time timestamptz default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_first bigint;
begin
    if p_from_seq is not null and p_from_time is not null then
        raise exception 'a replay begins with a number or with a time, not both' using errcode = '22023',
            hint = 'Leave one of them out.';
    end if;
    if pg_current_xact_id_if_assigned() is null then
        perform pgonce._rebase_outbox();
    end if;
    perform pgonce._require_subscription(p_subscription);
    perform from pgonce.outbox_cursor c where c.subscription = p_subscription collate "C" order by c.lane for update;
    select min(o.seq) into v_first from pgonce.outbox o
     where (p_from_seq is null or o.seq >= p_from_seq) and (p_from_time is null or o.created_at >= p_from_time);
    update pgonce.outbox_subscription c set evicted_at = null, evicted_why = null where c.subscription = p_subscription collate "C";
    update pgonce.outbox_cursor c
       set epoch = pgonce._next_fence(c.epoch, true), owner = null, lease_until = null, advanced_at = pgonce.now(),
           -- Somebody may yet commit below the first that is seen now.
           cursor = row(case when p_from_time is null then least(greatest(coalesce(p_from_seq, 1) - 1, 0),
                   coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0))
               else least(coalesce(v_first - 1, pgonce._outbox_floor(pg_current_snapshot())),
                          pgonce._outbox_floor(pg_current_snapshot())) end,
               '1:1:', null, null)::pgonce.outbox_position
     where c.subscription = p_subscription collate "C";
    perform pgonce._audit_act('replay', 'outbox ' || p_subscription, null,
        'from ' || coalesce(p_from_seq::text, p_from_time::text, 'the oldest'), jsonb_build_object('first', v_first));
    return v_first;
end
$$;
