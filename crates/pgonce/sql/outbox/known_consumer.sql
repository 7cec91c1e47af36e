-- pgonce.known_consumer(p_consumer): the consumer of this name.
-- raises   42704 there is none
create or replace function pgonce.known_consumer(p_consumer text)
returns pgonce.outbox_consumer
language plpgsql stable set search_path = ''
as $$
declare
    v_consumer pgonce.outbox_consumer;
begin
    select c.* into v_consumer from pgonce.outbox_consumer c where c.consumer = p_consumer;
    if not found then
        raise exception 'there is no consumer "%"', p_consumer using errcode = '42704',
            hint = 'Create it: select pgonce.create_consumer(''name'').';
    end if;
    return v_consumer;
end
$$;
