-- pgonce.drop_subscription(p_subscription): forgets a subscription, its cursor and what is parked for it.
-- answers  true: it was there
-- writes   its rows are gone; the log is not touched
create or replace function pgonce.drop_subscription(p_subscription text)
returns boolean
language plpgsql volatile set search_path = ''
as $$
begin
    delete from pgonce.outbox_subscription c where c.subscription = p_subscription;
    return found;
end
$$;
