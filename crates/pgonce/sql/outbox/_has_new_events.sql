-- pgonce._has_new_events(p_cursors): has anything been committed that one of these cursors has not seen?
--          Cheap enough to be asked every few milliseconds.
-- answers  true: read
-- note     looks at rows, not at the sequence: a number is drawn long before its event is there. Transactions
--          that are still open are passed by, however much they have written.
create or replace function pgonce._has_new_events(p_cursors text[])
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_cursor pgonce.outbox_position;
    v_now   pg_snapshot := pg_current_snapshot();
begin
    foreach v_cursor in array p_cursors::pgonce.outbox_position[] loop
        if v_cursor.upto is not null
           or exists (select from pgonce._ended_between(v_cursor.seen, v_now) e
                       cross join lateral (select from pgonce.outbox o
                             where o.seq > v_cursor.floor and o.xid > e.above and o.xid < e.below limit 1) o) then
            return true;
        end if;
    end loop;
    return false;
end
$$;
