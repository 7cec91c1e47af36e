-- pgonce._wake_subject(p_subscription, p_tenant, p_subject): the first parked event of a subject comes due, where it
--          only waited behind another. A dead or retried one keeps its own time.
-- writes   due_at of that one row, found by one look into the primary key, however many are behind it
create or replace function pgonce._wake_subject(p_subscription text, p_tenant text, p_subject text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
    -- Whatever the statistics say: the right index and no more.
    set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_first record;
begin
    select k.seq, k.state into v_first from pgonce.parked k
     where k.tenant = p_tenant collate "C" and k.subscription = p_subscription collate "C" and k.subject = p_subject collate "C" and k.state <> 'delayed'
     order by k.seq limit 1;
    if v_first.state = 'behind' then
        update pgonce.parked k set due_at = pgonce.now()
         where k.tenant = p_tenant collate "C" and k.subscription = p_subscription collate "C" and k.subject = p_subject collate "C" and k.seq = v_first.seq;
    end if;
end
$$;
