-- pgonce.refer(p_system, p_reference, p_kind, p_id, p_tenant): names a thing by another system's name for it, once.
-- answers  one row: made_now true, the reference points to p_id from now on; false, it existed, and id is what it
--          points to
-- locks    the reference; a second transaction waits for the first to end
-- writes   pgonce.external_reference
-- raises   22023 a bad name
-- note     call it first, then create the thing, in one transaction: where made_now is false, the thing exists. A
--          thing may have any number of references
-- example  select * from pgonce.refer('portal', 'complaint-77', 'case', 'case-1');
--          select * from pgonce.refer('portal', 'complaint-77', 'case', 'case-2');
create or replace function pgonce.refer(p_system text, p_reference text, p_kind text, p_id text, p_tenant text default '')
returns table (made_now boolean, id text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if (octet_length(p_system) between 1 and 200) is not true or (octet_length(p_reference) between 1 and 255) is not true
        or (octet_length(p_kind) between 1 and 200) is not true or (octet_length(p_id) between 1 and 255) is not true then
        raise exception 'a reference needs a system, its name there, a kind and an id' using errcode = '22023',
            hint = 'For example refer(''portal'', ''complaint-77'', ''case'', ''case-1'').';
    end if;
    perform pgonce._force_durable_commit();
    -- The row in the way may be too young to be seen: look again.
    loop
        insert into pgonce.external_reference as r (tenant, system, kind, reference, id, at)
        values (coalesce(p_tenant, ''), p_system, p_kind, p_reference, p_id, pgonce.now())
        on conflict on constraint one_thing_per_reference do nothing;
        made_now := found;
        select r.id into id from pgonce.external_reference r
         where r.tenant = coalesce(p_tenant, '') collate "C" and r.system = p_system collate "C" and r.kind = p_kind collate "C"
           and r.reference = p_reference collate "C";
        exit when found;
    end loop;
    return next;
end
$$;
