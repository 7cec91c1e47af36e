-- pgonce.release_messages(p_consumer, p_claimed): gives stored messages back that a worker did not try.
-- answers  how many it still held
-- locks    their rows
-- writes   each element {"tenant", "seq", "fence"} of p_claimed is due at once, with one attempt fewer
-- raises   nothing
-- example  select pgonce.release_messages('billing', '[]');
create or replace function pgonce.release_messages(p_consumer text, p_claimed jsonb)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    update pgonce.inbox_message m
       set status = 'received', due_at = pgonce.now(), owner = null, attempts = greatest(m.attempts - 1, 0)
      from jsonb_to_recordset(p_claimed) as c (tenant text, seq bigint, fence bigint)
     where m.tenant = c.tenant and m.consumer = p_consumer collate "C" and m.seq = c.seq and m.fence = c.fence
       and m.status = 'processing';
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
