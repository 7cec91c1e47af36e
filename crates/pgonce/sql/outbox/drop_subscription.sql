-- pgonce.drop_subscription(p_subscription): removes a subscription, its cursor and what is parked for it.
-- answers  true: it existed
-- locks    the subscription's rows
-- writes   deletes its rows; the log is not touched; a row of pgonce.operator_act
-- raises   nothing
-- example  select pgonce.create_subscription('billing');
--          select pgonce.drop_subscription('billing');
create or replace function pgonce.drop_subscription(p_subscription text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgonce.outbox_subscription c where c.subscription = p_subscription collate "C";
    if not found then
        return false;
    end if;
    perform pgonce._audit_act('drop', 'outbox ' || p_subscription, null, null);
    return true;
end
$$;
