-- pgonce._external_lock(p_provider, p_reference, p_tenant): lets one transaction at a time bring a provider's reference and the
--          calls that have it together.
-- locks    the reference's name, until the end of the transaction; comes before every row
-- raises   42501 the session's role is bound to another tenant; 25000 the transaction is not READ COMMITTED: it would not see the report, or the reference, that was committed while it
--          waited, and each would stay without the other
create or replace function pgonce._external_lock(p_provider text, p_reference text, p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_reference is not null then
        perform pgonce._check_tenant(p_tenant);
        if current_setting('transaction_isolation') <> 'read committed' then
            raise exception 'a provider''s reference is recorded in READ COMMITTED, not in %', current_setting('transaction_isolation')
                using errcode = '25000', hint = 'Call it in a transaction of its own: begin isolation level read committed.';
        end if;
        perform pg_advisory_xact_lock(pgonce._lock_id(p_tenant, 'external reference', p_provider || ' ' || p_reference));
    end if;
end
$$;
