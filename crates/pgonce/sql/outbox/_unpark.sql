-- pgonce._unpark(p_parked): takes an event out of the parked ones; the next of its subject comes due.
-- writes   that row goes; the first behind it is due now. A dead or retried one keeps its own time.
create or replace function pgonce._unpark(p_parked pgonce.parked)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgonce.parked k
     where k.tenant = p_parked.tenant and k.subscription = p_parked.subscription and k.subject = p_parked.subject
       and k.seq = p_parked.seq;
    update pgonce.parked k set due_at = pgonce.now()
     where k.tenant = p_parked.tenant and k.subscription = p_parked.subscription and k.subject = p_parked.subject
       and k.state = 'behind'
       and k.seq = (select min(f.seq) from pgonce.parked f
                     where f.tenant = k.tenant and f.subscription = k.subscription and f.subject = k.subject
                       and f.state <> 'delayed');
end
$$;
