-- pgonce._retention_for(p_contract, p_keep): how long one answer is kept.
-- answers  p_keep, or the contract's retention where it is null; in any case as long as somebody
--          may still come back for it: no shorter than the contract's horizons
-- raises   22023 it is not positive
create or replace function pgonce._retention_for(p_contract pgonce.scope, p_keep interval)
returns interval
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if p_keep <= interval '0' then
        raise exception 'an answer cannot be kept for %', p_keep using errcode = '22023',
            hint = 'Give a positive time, or none for the retention of the scope.';
    end if;
    return greatest(coalesce(pgonce._fixed_length(p_keep), p_contract.retention), p_contract.client_retry,
        p_contract.redelivery, p_contract.reconciliation, p_contract.audit);
end
$$;
