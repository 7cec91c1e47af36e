-- pgonce._raise_cursor_fenced(p_consumer, p_source, p_partition, p_epoch, p_tenant): says that a worker does not hold a
--          partition, or is not where it thinks.
-- raises   P4012, always
create or replace function pgonce._raise_cursor_fenced(p_consumer text, p_source text, p_partition text, p_epoch bigint, p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'epoch % does not hold partition "%" of source "%" for consumer "%", or is not where it thinks',
        coalesce(p_epoch::text, 'null'), p_partition, p_source, p_consumer using errcode = 'P4012',
        detail = coalesce((select format('Now epoch %s, owner %s, position %s.', c.epoch, coalesce(c.owner, 'none'),
            coalesce(c.position || '-' || c.minor, 'none')) from pgonce.inbox_cursor c
            where c.tenant = p_tenant collate "C" and c.consumer = p_consumer collate "C" and c.source = p_source collate "C" and c.partition = p_partition collate "C"),
            'Nobody has taken it.'),
        hint = 'Roll back, take the partition again, and go on from the position that it answers.';
end
$$;
