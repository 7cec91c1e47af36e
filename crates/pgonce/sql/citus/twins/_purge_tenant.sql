-- pgonce._purge_tenant(p_limit, p_tenant): on Citus, what pgonce.purge does for one tenant, on the server that has its rows.
-- answers  how many it removed or reduced to a tombstone
-- locks    the records it removes, and none that is in use
-- writes   pgonce.intent: only finished and expired rows
create or replace function pgonce._purge_tenant(p_limit integer, p_tenant text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now      timestamptz := pgonce.now();
    v_row      record;
    v_contract pgonce.scope;
    v_done     bigint := 0;
begin
    for v_row in
        select i.scope, i.key, i.gone_at is null as kept from pgonce.intent i
         where i.tenant = p_tenant and i.expires_at <= v_now limit p_limit for update skip locked
    loop
        if v_contract.scope is distinct from v_row.scope collate "C" then
            select s.* into v_contract from pgonce.scope s where s.tenant = p_tenant and s.scope = v_row.scope;
            if not found then
                select s.* into v_contract from pgonce.scope s where s.tenant = '' and s.scope = v_row.scope;
            end if;
            if not found then
                select s.* into v_contract from pgonce.scope s where s.tenant = '' and s.scope in ('*', '*off');
            end if;
        end if;
        if v_row.kept and v_contract.after_expiry = 'gone' then
            update pgonce.intent i
               set gone_at = v_now, expires_at = coalesce(v_now + v_contract.tombstone_for, 'infinity'),
                   answer = null, ref_type = null, ref_id = null, failure_message = null
             where i.tenant = p_tenant and i.scope = v_row.scope and i.key = v_row.key;
        else
            delete from pgonce.intent i where i.tenant = p_tenant and i.scope = v_row.scope and i.key = v_row.key;
        end if;
        v_done := v_done + 1;
    end loop;
    return v_done;
end
$$;
