-- pgonce.drop_subscription on Citus: as outbox/drop_subscription.sql, with every event that waits for it, on every server.
-- note     a transaction that is open meanwhile may publish for it yet: nobody gets that, and creating one of this name, or
--          dropping it again, removes it
create or replace function pgonce.drop_subscription(p_subscription text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_name  text collate "C" := p_subscription;
    v_queue text collate "C" := 'outbox/' || p_subscription;
    v_found boolean;
begin
    delete from pgonce.outbox_subscription c where c.subscription = v_name;
    v_found := found;
    delete from pgonce.job_queue q where q.tenant = '' and q.queue = v_queue;
    perform pgonce._delete_events(v_queue);
    return v_found;
end
$$;
