-- pgonce._external_lock(p_provider, p_reference, p_tenant): lets one transaction at a time bring a provider's reference and the
--          calls that have it together.
-- locks    the reference's name, until the end of the transaction; comes before every row
create or replace function pgonce._external_lock(p_provider text, p_reference text, p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_reference is not null then
        perform pg_advisory_xact_lock(pgonce._lock_id(p_tenant, 'external reference', p_provider || ' ' || p_reference));
    end if;
end
$$;
