-- pgonce.fingerprint(p_request, p_operation, p_version): computes the fingerprint of a JSON request.
-- answers  SHA-256 of the request's canonical JSON (RFC 8785, integers of 64 bits exact). With an
--          operation or a version: SHA-256 of the operation, the version and the canonical JSON, the
--          first two each preceded by its length in bytes as eight bytes, most significant first.
--          The same request has the same fingerprint in Rust: Fingerprint::of.
-- locks    nothing
-- writes   nothing
-- raises   22003 a number is too large for a double
-- note     null in, null out; pgonce.claim then raises P4003
-- example  select pgonce.fingerprint('{"item": "book", "qty": 2}');
--          select outcome, fence
--            from pgonce.claim('orders.create', 'order-7', pgonce.fingerprint('{"item": "book", "qty": 2}'));
create or replace function pgonce.fingerprint(
    p_request jsonb, p_operation text default '', p_version text default ''
)
returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp
as $$
declare
    v_operation bytea := convert_to(p_operation, 'UTF8');
    v_version   bytea := convert_to(p_version, 'UTF8');
    v_json      bytea := convert_to(pgonce._canonical_json(p_request), 'UTF8');
begin
    if p_operation collate "C" = '' and p_version collate "C" = '' then
        return sha256(v_json);
    end if;
    return sha256(int8send(octet_length(v_operation)) || v_operation
        || int8send(octet_length(v_version)) || v_version || v_json);
end
$$;
