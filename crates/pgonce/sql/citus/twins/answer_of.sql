-- pgonce.answer_of on Citus: as intent/answer_of.sql, delegated.
create or replace function pgonce.answer_of(p_scope text, p_key text, p_fingerprint bytea, p_tenant text default '')
returns table (answer jsonb, ref_type text, ref_id text, attempts integer)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgonce.now();
begin
    return query select i.answer, i.ref_type, i.ref_id, i.attempts from pgonce.intent i
     where i.tenant = p_tenant and i.scope = p_scope collate "C" and i.key = p_key collate "C"
       and i.status = 'succeeded' and i.fingerprint = p_fingerprint and i.gone_at is null and i.expires_at > v_now;
end
$$;
