-- pgonce._release_lanes(p_subscription, p_owner): a relay goes. Its lanes are free at once, at the cursors
--          that were kept last.
-- answers  how many lanes it gave back
create or replace function pgonce._release_lanes(p_subscription text, p_owner text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    delete from pgonce.outbox_relay r where r.subscription = p_subscription collate "C" and r.owner = p_owner;
    update pgonce.outbox_cursor c set owner = null, lease_until = null
     where c.subscription = p_subscription collate "C" and c.owner = p_owner;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
