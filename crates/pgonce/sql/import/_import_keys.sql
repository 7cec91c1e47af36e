-- pgonce._import_keys(p_job, p_number, p_rows, p_tenant): takes the natural keys of rows for their calls.
-- answers  for each row that must not be passed to the function its position, from 0, and whether its key came
--          before with other content
-- locks    the keys that it takes
-- writes   the keys
-- note     p_rows is a list of [key, hash in hex, row]
create or replace function pgonce._import_keys(p_job text, p_number integer, p_rows jsonb, p_tenant text)
returns table (at bigint, changed boolean)
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    with r as materialized (
        select x.at - 1 as at, x.value ->> 0 as key, decode(x.value ->> 1, 'hex') as hash, (x.value ->> 2)::bigint as row
          from jsonb_array_elements(p_rows) with ordinality as x (value, at)
    ), taken as (
        insert into pgonce.import_key (tenant, job, key, hash, number, row)
        select p_tenant, p_job, r.key, r.hash, p_number, r.row from r order by r.key collate "C", r.at
            on conflict on constraint one_call_per_key do nothing
        returning row
    )
    select r.at, coalesce(k.hash, f.hash) is distinct from r.hash
      from r
      left join pgonce.import_key k on k.tenant = p_tenant and k.job = p_job and k.key = r.key
      left join lateral (select o.hash from r o where o.key = r.key order by o.at limit 1) f on true
     where r.row not in (select t.row from taken t);
end;
