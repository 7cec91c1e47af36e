-- pgonce._leased_lanes(p_subscription, p_held): the lanes that a relay says it holds, each checked.
-- answers  for each element {"lane", "epoch", "cursor"} of p_held one row; held is false where a newer
--          epoch holds the lane, the lease has run out, the database is another since, or the cursor is beyond
--          everything that was ever published here or has seen ids of another server
-- note     an epoch begins with the server's timeline: after a failover none from before holds.
--          Inlined into the statements that call it, which is why it is labelled stable.
create or replace function pgonce._leased_lanes(p_subscription text, p_held jsonb)
returns table (lane smallint, epoch bigint, cursor pgonce.outbox_position, held boolean)
language sql stable
begin atomic
    select h.lane, h.epoch, h.cursor::pgonce.outbox_position,
           coalesce(c.epoch = h.epoch and c.lease_until > pgonce.now()
                    and h.epoch >= s.oldest and s.same
                    and not pgonce._snapshot_is_foreign(coalesce((c.cursor).upto, (c.cursor).seen), c.xmin, n.next, n.old), false)
           -- Beyond the sequence: from a life in which more was published. Beyond the ids: from a server that was ahead.
           and (h.cursor is null or (h.cursor::pgonce.outbox_position).floor <= s.last
                and pg_snapshot_xmax(coalesce((h.cursor::pgonce.outbox_position).upto, (h.cursor::pgonce.outbox_position).seen)) <= n.next)
      from jsonb_to_recordset(p_held) as h (lane smallint, epoch bigint, cursor text)
      cross join pgonce._current_ids() n
      cross join (select l.database_life = pgonce._database_life() as same,
                         pgonce._first_fence() as oldest,
                         coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0) as last
                    from pgonce.outbox_state l offset 0) s
      left join pgonce.outbox_cursor c on c.subscription = p_subscription and c.lane = h.lane;
end;
