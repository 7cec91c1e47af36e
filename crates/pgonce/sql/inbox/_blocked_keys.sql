-- pgonce._blocked_keys(p_consumer, p_keys, p_tenant): which of these keys have a stored message that is neither
--          applied nor skipped. What comes for such a key is stored behind it, so that its order holds.
create or replace function pgonce._blocked_keys(p_consumer text, p_keys text[], p_tenant text default '')
returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select k from (select distinct u.k from unnest(p_keys) u (k)) d
     where exists (select from pgonce.inbox_message m
                    where m.tenant = p_tenant and m.consumer = p_consumer and m.key = d.k
                      and m.status <> 'processed' and m.skipped_at is null and m.holds_key);
end;
