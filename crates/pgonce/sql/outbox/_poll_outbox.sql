-- pgonce._poll_outbox(p_cursor, p_subscriptions): what a process asks for all its relays at once while they are idle:
--          is there anything new, and which of them have parked events whose time has come?
-- answers  one row. news: something was committed that p_cursor has not seen, or nothing is known; cursor: what to ask
--          with next time; due: those of p_subscriptions, which may be null
-- note     a hint, so that nobody waits for a relay that sleeps: what is read, and from where, each lane's own cursor says
create or replace function pgonce._poll_outbox(p_cursor text, p_subscriptions text[],
    out news boolean, out cursor text, out due text[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now pg_snapshot := pg_current_snapshot();
begin
    -- Transaction ids that went back: a server that crashed, or another database under the same name.
    news := coalesce(pg_snapshot_xmax((p_cursor::pgonce.outbox_position).seen) > pg_snapshot_xmax(v_now), true)
        or pgonce._has_new_events(array[p_cursor]);
    cursor := row(pgonce._outbox_floor(v_now), v_now, null, null)::pgonce.outbox_position;
    due := array(select s from unnest(p_subscriptions) s
                  where exists (select from pgonce.parked k
                                 where k.subscription = s collate "C" and k.due_at <= pgonce.now()
                                   -- What is behind another one cannot move: pgonce._due_parked does not give it.
                                   and not exists (select from pgonce.parked f
                                        where f.tenant = k.tenant and f.subscription = k.subscription and f.subject = k.subject
                                          and f.state <> 'delayed' and f.seq <> k.seq
                                          and (f.seq < k.seq or k.state = 'delayed') offset 0)));
end
$$;
