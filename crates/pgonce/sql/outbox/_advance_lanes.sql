-- pgonce._advance_lanes(p_subscription, p_held, p_release): keeps how far a relay has delivered. To be
--          called first in a transaction.
-- answers  the lanes that were kept; a lane that is missing is held by a newer epoch
-- locks    the rows of the lanes
-- writes   cursor of each element {"lane", "epoch", "cursor"} of p_held under its epoch; p_release gives
--          the lanes back as well
create or replace function pgonce._advance_lanes(p_subscription text, p_held jsonb, p_release boolean default false)
returns setof smallint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._record_watermark();
    perform pgonce._force_durable_commit();
    perform from pgonce.outbox_cursor c
      where c.subscription = p_subscription collate "C"
        and c.lane in (select h.lane from jsonb_to_recordset(p_held) as h (lane smallint))
      order by c.lane for update;
    return query
        update pgonce.outbox_cursor c
           set cursor = h.cursor, advanced_at = pgonce.now(),
               published = coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0),
               owner = case when p_release then null else c.owner end,
               lease_until = case when p_release then null else c.lease_until end
          from pgonce._leased_lanes(p_subscription, p_held) h
         where h.held and c.subscription = p_subscription collate "C" and c.lane = h.lane and c.epoch = h.epoch
        returning c.lane;
end
$$;
