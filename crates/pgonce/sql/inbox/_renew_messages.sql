-- pgonce._renew_messages(p_consumer, p_claimed, p_lease): a worker still has stored messages in hand.
-- answers  how many it renewed: not those that another worker has, nor those that are being ended at this moment
-- locks    the rows it renews, for a moment; it waits for none
-- writes   the end of the lease, under the fence, of each element {"tenant", "seq", "fence"} of p_claimed
create or replace function pgonce._renew_messages(p_consumer text, p_claimed jsonb, p_lease interval)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    -- Waiting for a row, it could close a circle with the transaction that ends the same messages in another order.
    with held as (
        select m.tenant, m.seq from jsonb_to_recordset(p_claimed) as c (tenant text, seq bigint, fence bigint)
          join pgonce.inbox_message m on m.tenant = c.tenant and m.consumer = p_consumer collate "C" and m.seq = c.seq
         where m.fence = c.fence and m.status = 'processing'
           for update of m skip locked
    )
    update pgonce.inbox_message m set due_at = pgonce.now() + p_lease
      from held h
     where m.tenant = h.tenant and m.consumer = p_consumer collate "C" and m.seq = h.seq;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
