-- pgonce.finish_messages(p_consumer, p_claimed): records that stored messages are applied. Call it in the
--          transaction of their effects.
-- answers  how many
-- locks    their rows
-- writes   status processed, for each element {"tenant", "seq", "fence"} of p_claimed; for one with "was_read": true, which was
--          applied as a reader made it of what is stored, that no projection can be built from this consumer's messages
-- raises   P4012 another worker holds one of them, or one before it of the same key is not applied: roll back, its effect
--          belongs to another
-- example  select pgonce.finish_messages('billing', '[]');
create or replace function pgonce.finish_messages(p_consumer text, p_claimed jsonb)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
    v_lost  record;
begin
    perform pgonce._force_durable_commit();
    update pgonce.inbox_message m
       set status = 'processed', due_at = null, owner = null, settled_at = pgonce.now(),
           settled_xid = pg_current_xact_id(), failure_code = null, failure_message = null
      from jsonb_to_recordset(p_claimed) as c (tenant text, seq bigint, fence bigint)
     where m.tenant = c.tenant and m.consumer = p_consumer collate "C" and m.seq = c.seq and m.fence = c.fence
       and m.status = 'processing';
    get diagnostics v_count = row_count;
    if v_count <> jsonb_array_length(p_claimed) then
        select c.seq, c.fence, m.fence as now, m.status into v_lost
          from jsonb_to_recordset(p_claimed) as c (tenant text, seq bigint, fence bigint)
          left join pgonce.inbox_message m on m.tenant = c.tenant and m.consumer = p_consumer collate "C" and m.seq = c.seq
         where not (m.fence = c.fence and m.status = 'processed' and m.settled_xid = pg_current_xact_id()) or m.seq is null
         limit 1;
        raise exception 'fence % does not hold message % of consumer "%"', v_lost.fence, v_lost.seq, p_consumer
            using errcode = 'P4012', detail = coalesce(format('Now fence %s, %s.', v_lost.now, v_lost.status), 'There is no such message.'),
            hint = 'Roll back: another worker has it, or has applied it.';
    end if;
    -- A run of a key may have lost one in its middle to another worker.
    select m.seq, f.seq as before into v_lost
      from jsonb_to_recordset(p_claimed) as c (tenant text, seq bigint, fence bigint)
      join pgonce.inbox_message m on m.tenant = c.tenant and m.consumer = p_consumer collate "C" and m.seq = c.seq
      cross join lateral (
            select e.seq from pgonce.inbox_message e
             where e.tenant = m.tenant and e.consumer = m.consumer and e.key = m.key and e.seq < m.seq
               and e.status <> 'processed' and e.skipped_at is null and e.holds_key limit 1) f
     limit 1;
    if found then
        raise exception 'message % of consumer "%" comes before message % of the same key, and is not applied', v_lost.before, p_consumer, v_lost.seq
            using errcode = 'P4012', hint = 'Roll back, and give it back with pgonce.release_messages.';
    end if;
    -- A reader made other messages of them than are stored: see pgonce._projection_page. Once for all, so that nobody waits here.
    insert into pgonce.sweep (tenant, name)
    select distinct c.tenant, 'inbox_read/' || p_consumer from jsonb_to_recordset(p_claimed) as c (tenant text, was_read boolean)
     where c.was_read and not exists (
            select from pgonce.sweep w where w.tenant = c.tenant collate "C" and w.name = ('inbox_read/' || p_consumer) collate "C")
    on conflict on constraint one_place_per_sweep do nothing;
    return v_count;
end
$$;
