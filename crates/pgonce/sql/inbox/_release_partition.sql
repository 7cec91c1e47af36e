-- pgonce._release_partition(p_consumer, p_source, p_partition, p_epoch, p_tenant): a worker gives a partition back.
-- answers  true: it was its own
-- writes   owner and lease; the position stays
create or replace function pgonce._release_partition(p_consumer text, p_source text, p_partition text, p_epoch bigint,
    p_tenant text default pgonce._own_tenant())
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update pgonce.inbox_cursor c set owner = null, lease_until = null
     where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"
       and c.epoch = p_epoch;
    return found;
end
$$;
