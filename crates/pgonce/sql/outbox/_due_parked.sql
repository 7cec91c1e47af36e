-- pgonce._due_parked(p_subscription, p_held, p_limit): parked events whose time has come, the first of
--          each subject only: those behind it come due when it is settled.
-- answers  events as pgonce._read_lanes, with the attempts made; settle each with pgonce._settle_lane
-- raises   P4012 a lane is not held
create or replace function pgonce._due_parked(p_subscription text, p_held jsonb, p_limit integer default 100)
returns table (lane smallint, cursor text, seq bigint, act text, message_id uuid, tenant text, topic text,
    type text, subject text, headers jsonb, payload jsonb, created_at timestamptz, deliver_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_zombie record;
begin
    for v_zombie in select h.* from pgonce._leased_lanes(p_subscription, p_held) h where not h.held limit 1 loop
        perform pgonce._raise_lane_fenced(p_subscription, v_zombie.lane, v_zombie.epoch);
    end loop;
    return query
        select k.lane, null::text, k.seq, 'send', k.message_id, k.tenant::text, k.topic::text, k.type::text,
               k.subject::text, k.headers, k.payload, k.created_at, null::timestamptz
          from pgonce.parked k
         where k.subscription = p_subscription and k.due_at <= pgonce.now()
           and k.lane in (select h.lane from jsonb_to_recordset(p_held) as h (lane smallint))
           and not exists (select from pgonce.parked f
                            where f.tenant = k.tenant and f.subscription = k.subscription and f.subject = k.subject
                              and f.state <> 'delayed' and f.seq <> k.seq
                              and (f.seq < k.seq or k.state = 'delayed'))
           -- Two that were delayed may come due together: one after the other.
           and not exists (select from pgonce.parked f
                            where k.state = 'delayed' and f.tenant = k.tenant and f.subscription = k.subscription
                              and f.subject = k.subject and f.state = 'delayed'
                              and (f.due_at, f.seq) < (k.due_at, k.seq))
         order by k.due_at limit p_limit;
end
$$;
