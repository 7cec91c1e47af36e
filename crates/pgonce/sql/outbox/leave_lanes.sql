-- pgonce.leave_lanes(p_consumer, p_owner): a relay goes. Its lanes are free at once, at the places
--          that were kept last.
-- answers  how many lanes it gave back
create or replace function pgonce.leave_lanes(p_consumer text, p_owner text)
returns bigint
language plpgsql volatile set search_path = ''
as $$
declare
    v_count bigint;
begin
    delete from pgonce.outbox_relay r where r.consumer = p_consumer and r.owner = p_owner;
    update pgonce.outbox_cursor c set owner = null, lease_until = null
     where c.consumer = p_consumer and c.owner = p_owner;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
