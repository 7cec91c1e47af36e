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
    perform pgonce._wake_subject(p_parked.subscription, p_parked.tenant, p_parked.subject);
end
$$;
