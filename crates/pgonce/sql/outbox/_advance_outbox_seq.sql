-- pgonce._advance_outbox_seq(): takes the log's sequence past every number that is in use, where it is behind: a sequence does
--          not travel by logical replication. Owner only.
-- answers  the sequence's last number
-- locks    where it is behind: the log against writers, and the sequence. Waits at most 200 ms for those who are at work
-- writes   the sequence, in this transaction; a copy, with a number of its own, of each event whose number was given out here for
--          the second time: readers may have passed it, and deliveries are settled by number. Its message id is the same
-- raises   55P03 others are publishing, or have read the sequence in transactions that are open
create or replace function pgonce._advance_outbox_seq()
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '200ms'
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_top    bigint;
    v_last   bigint;
    v_own    xid8;
    v_since  xid8;
    v_marked bigint;
begin
    for v_look in 1..2 loop
        select case when s.is_called then s.last_value else 0 end into v_last from pgonce.outbox_seq s;
        -- All lanes: their index leads to the highest number.
        select greatest(max(t.seq), (select max(m.seq) from pgonce.outbox_watermark m), (select max(c.published) from pgonce.outbox_cursor c),
                        (select max(k.seq) from pgonce.parked k), (select max(s.seq) from pgonce.outbox_skipped s)) into v_top
          from generate_series(0, 15) n
         cross join lateral (select o.seq from pgonce.outbox o where o.lane = n::smallint order by o.seq desc limit 1) t;
        if (v_top > v_last) is not true then
            return v_last;
        elsif v_look = 1 then
            -- Set while a writer draws a number, it could go back. Locked, then looked at once more.
            begin
                lock table only pgonce.outbox in share row exclusive mode;
            exception when lock_not_available then
                raise exception 'the sequence of the log is behind its numbers, and cannot be set while others publish'
                    using errcode = '55P03', detail = format('Its last number is %s; the log has %s.', v_last, v_top),
                    hint = 'It is tried again with each claim. Transactions that have published must end.';
            end;
        end if;
    end loop;
    -- Not setval, which a rollback leaves as it is: the copies would be gone, and nothing would say that they are missing.
    execute format('alter sequence pgonce.outbox_seq restart with %s', v_top);
    perform nextval('pgonce.outbox_seq');
    -- A copy is an event of this transaction: nobody has seen that. First the id, then the numbers.
    v_own := pg_current_xact_id();
    -- In the same life of the database, events from before the newest mark have numbers up to it, and events since have higher ones,
    -- or theirs are given out twice. Elsewhere all that is here from before has ids of another server.
    select m.xid, m.seq into v_since, v_marked
      from pgonce.outbox_watermark m cross join pgonce._current_ids() n
     where not pgonce._id_is_foreign(m.xid, m.xmin, n.next, n.old)
       and exists (select from pgonce.outbox_state l where l.database_life = pgonce._database_life())
     order by m.xid desc limit 1;
    insert into pgonce.outbox
    select nextval('pgonce.outbox_seq'), v_own, t.created_at, t.size, t.lane, t.message_id, t.tenant, t.topic, t.type, t.subject,
           t.headers, t.payload, t.deliver_at
      from (select o.* from pgonce.outbox o cross join pgonce._current_ids() n
             where o.lane = any (array(select g::smallint from generate_series(0, 15) g)) and o.seq <= v_last
               and (v_since is null or o.xid >= v_since or o.seq > v_marked)
               and not pgonce._id_is_foreign(o.xid, o.xmin, n.next, n.old)
             order by o.seq offset 0) t;
    return (select s.last_value from pgonce.outbox_seq s);
end
$$;
