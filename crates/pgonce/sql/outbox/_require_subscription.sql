-- pgonce._require_subscription(p_subscription): the subscription of this name.
-- raises   42704 there is none
create or replace function pgonce._require_subscription(p_subscription text)
returns pgonce.outbox_subscription
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgonce.outbox_subscription;
begin
    select c.* into v_subscription from pgonce.outbox_subscription c where c.subscription = p_subscription collate "C";
    if not found then
        raise exception 'there is no subscription "%"', p_subscription using errcode = '42704',
            hint = 'Create it: select pgonce.create_subscription(''name'').';
    end if;
    return v_subscription;
end
$$;
