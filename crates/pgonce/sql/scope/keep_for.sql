-- pgonce.keep_for(p_contract, p_keep): how long one answer is kept.
-- answers  p_keep, or the contract's retention where it is null
-- raises   22023 it is shorter than the time in which somebody may still come back for it
create or replace function pgonce.keep_for(p_contract pgonce.scope, p_keep interval)
returns interval
language plpgsql stable set search_path = ''
as $$
begin
    if p_keep <= interval '0' or p_keep < greatest(p_contract.client_retry, p_contract.redelivery,
        p_contract.reconciliation, p_contract.audit) then
        raise exception 'an answer of scope "%" cannot be kept for % only', p_contract.scope, p_keep
            using errcode = '22023',
            detail = format('client_retry %s, redelivery %s, reconciliation %s, audit %s.', p_contract.client_retry,
                p_contract.redelivery, p_contract.reconciliation, p_contract.audit),
            hint = 'Keep it at least as long as every horizon of the contract, or change the contract.';
    end if;
    return coalesce(p_keep, p_contract.retention);
end
$$;
