-- pgonce._raise_not_holder(p_code, p_what, ...): says why an attempt may not settle its intent.
-- raises   always: P4002 other request, P4012 fenced by a newer attempt, else p_code
create or replace function pgonce._raise_not_holder(p_code text, p_what text, p_scope text, p_key text,
    p_fingerprint bytea, p_fence bigint, p_tenant text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_row pgonce.intent;
begin
    perform pgonce._check_names(p_tenant, p_scope, p_key, coalesce(p_fingerprint, decode('00', 'hex')));
    if p_fence is null or p_fence < 1 then
        raise exception '%: a fence of % was never given out', p_what, coalesce(p_fence::text, 'null')
            using errcode = '22023', hint = 'Pass the fence that pgonce.claim answered.';
    end if;
    select i.* into v_row from pgonce.intent i
     where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C" and i.key = p_key collate "C";
    if not found then
        raise exception '%: no attempt holds this intent under fence %', p_what, p_fence
            using errcode = p_code, detail = format('scope %s has no record of the key.', p_scope),
            hint = 'Claim first, and settle under the fence that the claim answered.';
    elsif v_row.fingerprint <> p_fingerprint then
        raise exception '%: the key belongs to another request', p_what using errcode = 'P4002',
            detail = format('scope %s, status %s.', p_scope, v_row.status),
            hint = 'Settle with the fingerprint that was claimed.';
    elsif v_row.fence > p_fence and p_fence > 1 then
        raise exception '%: a newer attempt holds the intent', p_what using errcode = 'P4012',
            detail = format('scope %s: fence %s is past, now %s; status %s.', p_scope, p_fence, v_row.fence, v_row.status),
            hint = 'Roll back what this attempt did in the database and claim again to learn the answer.';
    elsif v_row.fence = p_fence and v_row.status = 'processing' then
        raise exception '%: the lease has run out and may not be used any more', p_what using errcode = 'P4012',
            detail = format('scope %s, fence %s: the contract says refuse, or the lease is from before a failover '
                'that may have lost a takeover.', p_scope, p_fence),
            hint = 'Roll back what this attempt did in the database and claim again to learn the answer.';
    else
        raise exception '%: the intent is % under fence %', p_what, v_row.status, v_row.fence
            using errcode = p_code, detail = format('scope %s, this attempt has fence %s.', p_scope, p_fence),
            hint = 'Roll back and claim again: the claim says what is true now.';
    end if;
end
$$;
