-- pgonce.heartbeat(p_scope, p_key, p_fence, p_lease, p_tenant): renews a lease.
-- answers  until when the lease now holds, by the database's clock
-- locks    the intent's row
-- writes   lease_until of the row under this fence; an expired lease that nobody took over is
--          renewed too. Exactly one row, or it raises.
-- raises   P4012 a newer attempt holds the intent, or it is settled; 22023 bad lease
create or replace function pgonce.heartbeat(p_scope text, p_key text, p_fence bigint,
    p_lease interval, p_tenant text default '')
returns timestamptz
language plpgsql volatile set search_path = ''
as $$
declare
    v_until timestamptz;
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, '\x00', coalesce(p_lease, interval '0'));
    perform pgonce._force_durable_commit();
    perform pgonce.guard(p_scope, p_key, p_fence, p_tenant);
    update pgonce.intent i
       set lease_until = pgonce.now() + p_lease, last_at = pgonce.now()
     where i.tenant = p_tenant and i.scope = p_scope and i.key = p_key
    returning i.lease_until into strict v_until;
    return v_until;
end
$$;
