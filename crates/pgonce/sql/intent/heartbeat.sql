-- pgonce.heartbeat(p_scope, p_key, p_fence, p_lease, p_tenant): renews a lease.
-- answers  until when the lease now holds, by the database's clock
-- locks    the intent's row
-- writes   lease_until of the row under this fence. An expired lease that no attempt took over is renewed
--          too, unless the contract says refuse. Exactly one row, or it raises
-- raises   P4012 this fence does not hold the intent any more, or it is settled; 22023 a bad lease
-- example  select fence from pgonce.claim('mail.send', 'mail-11', '\x5e88', '30 seconds') \gset
--          select pgonce.heartbeat('mail.send', 'mail-11', :fence, '30 seconds');
create or replace function pgonce.heartbeat(p_scope text, p_key text, p_fence bigint,
    p_lease interval, p_tenant text default '')
returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz;
    v_until timestamptz;
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, decode('00', 'hex'), coalesce(p_lease, interval '0'));
    perform pgonce._force_durable_commit();
    perform pgonce.guard(p_scope, p_key, p_fence, p_tenant);
    v_now := pgonce.now();
    update pgonce.intent i
       set lease_until = v_now + p_lease, last_at = v_now
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C"
    returning i.lease_until into strict v_until;
    return v_until;
end
$$;
