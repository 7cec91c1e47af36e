-- pgonce._raise_bad_names(...): says which name of an intent is bad, where only an expression fits.
-- raises   P4000 P4001 P4003 22023, always
create or replace function pgonce._raise_bad_names(p_tenant text, p_scope text, p_key text, p_fingerprint bytea)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, p_fingerprint);
    perform pgonce._contract(p_tenant, p_scope);
    raise exception 'a name of the intent was refused for no known reason' using errcode = 'P4099',
        hint = 'Please report it.';
end
$$;
