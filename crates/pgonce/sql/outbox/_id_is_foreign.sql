-- pgonce._id_is_foreign(p_xid, p_writer, p_next, p_old): whether a row has the transaction id of another server, where it should have its
--          writer's: a mark or an event.
-- answers  true: the id has not ended here, or the row's writer (its xmin) is older than it. A savepoint's id is newer
-- note     inlined, which is why it is labelled stable; p_next and p_old are of pgonce._current_ids. Not for rows of this transaction
create or replace function pgonce._id_is_foreign(p_xid xid8, p_writer xid, p_next xid8, p_old xid8)
returns boolean
language sql stable
return p_xid >= p_next or p_xid > p_old and age(p_writer) > age(p_xid::xid);
