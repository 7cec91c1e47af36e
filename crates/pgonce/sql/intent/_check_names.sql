-- pgonce._check_names(...): refuses what cannot name an intent, each fault with its own code.
-- raises   P4000 scope, P4001 key, P4003 fingerprint missing; 22023 too long or a bad lease
create or replace function pgonce._check_names(p_tenant text, p_scope text, p_key text,
    p_fingerprint bytea, p_lease interval default null)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(p_scope, '') = '' then
        raise exception 'the scope is missing' using errcode = 'P4000',
            hint = 'Name a bounded kind of command, such as ''orders.create''.';
    elsif coalesce(p_key, '') = '' then
        raise exception 'the key is missing' using errcode = 'P4001',
            hint = 'Send the caller''s name for this one request; the same on every retry.';
    elsif coalesce(octet_length(p_fingerprint), 0) = 0 then
        raise exception 'the fingerprint is missing' using errcode = 'P4003',
            hint = 'Send the digest of the canonical request, for example sha256(convert_to(request, ''UTF8'')).';
    elsif p_tenant is null then
        raise exception 'the tenant is null' using errcode = '22023',
            hint = 'Leave it out, or pass the empty text, where there are no tenants.';
    elsif octet_length(p_key) > 255 or octet_length(p_scope) > 255 or octet_length(p_tenant) > 255 then
        raise exception 'a name is too long: key % bytes, scope % bytes, tenant % bytes; at most 255 each',
            octet_length(p_key), octet_length(p_scope), octet_length(p_tenant) using errcode = '22023',
            hint = 'Hash a long key: encode(sha256(convert_to(key, ''UTF8'')), ''hex'').';
    elsif octet_length(p_fingerprint) > 64 then
        raise exception 'the fingerprint has % bytes; at most 64', octet_length(p_fingerprint)
            using errcode = '22023', hint = 'Send a digest, not the request itself.';
    elsif p_lease <= interval '0' then
        raise exception 'a lease of % is not positive', p_lease using errcode = '22023',
            hint = 'Give the time the work may take before a heartbeat, such as interval ''30 seconds''.';
    end if;
end
$$;
