-- pgonce.release_messages(p_consumer, p_claimed): a worker gives stored messages back untried.
-- answers  how many were still its own
-- writes   each element {"tenant", "seq", "fence"} of p_claimed is due at once, with one attempt fewer
create or replace function pgonce.release_messages(p_consumer text, p_claimed jsonb)
returns integer
language plpgsql volatile set search_path = ''
as $$
declare
    v_count integer;
begin
    update pgonce.inbox_message m
       set status = 'received', due_at = pgonce.now(), owner = null, attempts = greatest(m.attempts - 1, 0)
      from jsonb_to_recordset(p_claimed) as c (tenant text, seq bigint, fence bigint)
     where m.tenant = c.tenant and m.consumer = p_consumer and m.seq = c.seq and m.fence = c.fence
       and m.status = 'processing';
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
