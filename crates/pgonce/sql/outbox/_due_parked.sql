-- pgonce._due_parked(p_subscription, p_held, p_limit, p_bytes): parked events whose time has come, of each subject
--          the first and a run of those that wait behind it, in order.
-- answers  events as pgonce._read_lanes; settle each with pgonce._settle_lane. At most p_limit events, of one subject
--          at most 256, and about p_bytes bytes; always at least one where one is due
-- raises   P4012 a lane is not held
create or replace function pgonce._due_parked(p_subscription text, p_held jsonb, p_limit integer default 100,
    p_bytes integer default 4194304)
returns table (lane smallint, cursor text, seq bigint, act text, message_id uuid, tenant text, topic text,
    type text, subject text, headers jsonb, payload jsonb, created_at timestamptz, deliver_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_zombie record;
    -- Known beforehand: what is due is walked in the order of its time, and no further than needed.
    v_now    timestamptz := pgonce.now();
    v_lanes  smallint[] := array(select h.lane from jsonb_to_recordset(p_held) as h (lane smallint));
begin
    for v_zombie in select h.* from pgonce._leased_lanes(p_subscription, p_held) h where not h.held limit 1 loop
        perform pgonce._raise_lane_fenced(p_subscription, v_zombie.lane, v_zombie.epoch);
    end loop;
    return query
        with first as materialized (
            select k.tenant, k.subject, k.seq, k.state, k.due_at
              from pgonce.parked k
             where k.subscription = p_subscription collate "C" and k.due_at <= v_now
               -- No condition for the index, which would no longer give them in the order of their time.
               and array_position(v_lanes, k.lane) is not null
               -- The offsets: each is one look into an index, and never a join, which takes the square of what is due.
               and not exists (select from pgonce.parked f
                                where f.tenant = k.tenant and f.subscription = k.subscription and f.subject = k.subject
                                  and f.state <> 'delayed' and f.seq <> k.seq
                                  and (f.seq < k.seq or k.state = 'delayed') offset 0)
               -- Those that were delayed may come due together: one after the other.
               and not exists (select from pgonce.parked f
                                where k.state = 'delayed' and f.tenant = k.tenant and f.subscription = k.subscription
                                  and f.subject = k.subject and f.state = 'delayed'
                                  and (f.due_at, f.seq) < (k.due_at, k.seq) offset 0)
             order by k.due_at limit p_limit
        ), due as materialized (
            select n.*, row_number() over all_due as place, sum(n.size) over all_due - n.size as before
              from (select k.due_at as first_due_at, r.* from first k
                     cross join lateral (
                           select p.*, p.seq as turn, bool_and(p.seq = k.seq or p.state = 'behind') over (order by p.seq) as in_run
                             from (select f.* from pgonce.parked f
                                    where f.tenant = k.tenant and f.subscription = p_subscription collate "C"
                                      and f.subject = k.subject and f.seq >= k.seq
                                      and k.state <> 'delayed' and f.state <> 'delayed'
                                    order by f.seq limit 256) p
                           union all
                           select p.*, row_number() over (order by p.due_at, p.seq), true
                             from (select f.* from pgonce.parked f
                                    where f.tenant = k.tenant and f.subscription = p_subscription collate "C"
                                      and f.subject = k.subject and f.due_at <= v_now
                                      and k.state = 'delayed' and f.state = 'delayed'
                                    order by f.due_at, f.seq limit 256) p) r
                     where r.in_run) n
            window all_due as (order by n.first_due_at, n.tenant, n.subject, n.turn)
        )
        select d.lane, null::text, d.seq, 'send', d.message_id, d.tenant::text, d.topic::text, d.type::text,
               d.subject::text, d.headers, d.payload, d.created_at, null::timestamptz
          from due d where d.place <= p_limit and d.before < p_bytes
         order by d.place;
end
$$;
