-- pgonce._record_watermark(p_every): remembers that transactions from now on have only numbers above
--          the log's last. To be called first in a transaction.
-- answers  true where it did; false where less than p_every numbers were drawn since the last mark, or the log is not known
--          to be of this life of the database: pgonce._rebase_outbox takes what is marked before it for over
-- writes   one row of pgonce.outbox_watermark
-- note     the number is read before this transaction gets its id: a transaction after this id
--          draws a higher number. Where the transaction has an id already nothing is known.
create or replace function pgonce._record_watermark(p_every bigint default 1000)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_last bigint;
begin
    if pg_current_xact_id_if_assigned() is not null then
        return false;
    end if;
    v_last := coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0);
    if v_last - coalesce((select m.seq from pgonce.outbox_watermark m order by m.xid desc limit 1), -p_every) < p_every then
        return false;
    elsif not exists (select from pgonce.outbox_state l where l.database_life = pgonce._database_life())
       or pgonce._outbox_misfit() is not null then
        return false;
    end if;
    insert into pgonce.outbox_watermark (xid, seq, at) values (pg_current_xact_id(), v_last, pgonce.now());
    return true;
end
$$;
