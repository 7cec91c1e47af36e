-- pgonce.held_lanes(p_consumer, p_held): the lanes that a relay says it holds, each checked.
-- answers  for each element {"lane", "epoch", "place"} of p_held one row; held is false where a newer
--          epoch holds the lane, the lease has run out, or the server is another since
-- note     an epoch begins with the server's timeline: after a failover none from before holds.
--          Inlined into the statements that call it, which is why it is labelled stable.
create or replace function pgonce.held_lanes(p_consumer text, p_held jsonb)
returns table (lane smallint, epoch bigint, place pgonce.outbox_place, held boolean)
language sql stable
begin atomic
    select h.lane, h.epoch, h.place::pgonce.outbox_place,
           coalesce(c.epoch = h.epoch and c.lease_until > pgonce.now()
                    and h.epoch >= s.oldest and s.same, false)
      from jsonb_to_recordset(p_held) as h (lane smallint, epoch bigint, place text)
      cross join (select l.system_identifier = pgonce.system_identifier() as same,
                         pgonce.timeline() << 41 as oldest
                    from pgonce.outbox_life l offset 0) s
      left join pgonce.outbox_cursor c on c.consumer = p_consumer and c.lane = h.lane;
end;
