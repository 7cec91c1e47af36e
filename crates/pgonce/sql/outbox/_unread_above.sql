-- pgonce._unread_above(p_cursor): the number that all is above that who is at this cursor has yet to read.
-- answers  while a window is walked in pages its floor stays at the beginning, and what was delivered of it is above that. What is not
--          above the end of the last page and still unread had not ended at the window's end, whose own floor it is above therefore
create or replace function pgonce._unread_above(p_cursor pgonce.outbox_position)
returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if (p_cursor).upto is null then
        return (p_cursor).floor;
    end if;
    return greatest((p_cursor).floor, least((p_cursor).after,
        greatest(pgonce._outbox_floor((p_cursor).upto), (select f.base_seq from pgonce.outbox_state f))));
end
$$;
