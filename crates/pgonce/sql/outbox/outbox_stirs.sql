-- pgonce.outbox_stirs(p_places): has anything been committed that one of these places has not seen?
--          Cheap enough to be asked every few milliseconds.
-- answers  true: read
-- note     looks at rows, not at the sequence: a number is drawn long before its event is there. Whoever
--          is still at work is passed by, however much they have written.
create or replace function pgonce.outbox_stirs(p_places text[])
returns boolean
language plpgsql volatile set search_path = ''
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_place pgonce.outbox_place;
    v_now   pg_snapshot := pg_current_snapshot();
begin
    foreach v_place in array p_places::pgonce.outbox_place[] loop
        if v_place.upto is not null
           or exists (select from pgonce.ended_between(v_place.seen, v_now) e
                       cross join lateral (select from pgonce.outbox o
                             where o.seq > v_place.floor and o.xid > e.above and o.xid < e.below limit 1) o) then
            return true;
        end if;
    end loop;
    return false;
end
$$;
