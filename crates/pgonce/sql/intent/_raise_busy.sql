-- pgonce._raise_busy(): says that another attempt holds the intent, where only an expression fits.
-- raises   P4029, always
create or replace function pgonce._raise_busy()
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'another attempt holds the intent, or nothing can be written here' using errcode = 'P4029',
        hint = 'Call pgonce.claim: it answers replay, refused, retry or busy, or says what is wrong.';
end
$$;
