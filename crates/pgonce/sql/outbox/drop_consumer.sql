-- pgonce.drop_consumer(p_consumer): forgets a consumer, its place and what is parked for it.
-- answers  true: it was there
-- writes   its rows are gone; the log is not touched
create or replace function pgonce.drop_consumer(p_consumer text)
returns boolean
language plpgsql volatile set search_path = ''
as $$
begin
    delete from pgonce.outbox_consumer c where c.consumer = p_consumer;
    return found;
end
$$;
