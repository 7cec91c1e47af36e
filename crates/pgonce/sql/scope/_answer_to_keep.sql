-- pgonce._answer_to_keep(p_contract, p_scope, p_answer, p_tenant, p_new): what a contract keeps of a success.
-- answers  the answer; null where the contract keeps less
-- raises   P4040 the answer is larger than the contract's max_answer; P4044 p_new, and the tenant has max_keys keys in the scope
-- note     an answer is as large as its JSON text. Keys are counted through the primary key, up to max_keys: what asks for such
--          a limit pays for it. Without a lock: a command would hold it to its COMMIT, and every other of the tenant in the scope
--          wait for it. So those that overlap pass together
create or replace function pgonce._answer_to_keep(p_contract pgonce.scope, p_scope text, p_answer jsonb, p_tenant text, p_new boolean)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if p_new and p_contract.max_keys is not null
       and exists (select from pgonce.intent i where i.tenant = p_tenant collate "C" and i.scope = p_scope collate "C"
                   offset p_contract.max_keys - 1) then
        raise exception 'the tenant has as many keys in this scope as its contract allows: %', p_contract.max_keys
            using errcode = 'P4044', detail = format('scope %s.', p_scope),
            hint = 'Keys are free again when their retention is over and they are purged; or raise max_keys.';
    elsif p_contract.storage <> 'answer' then
        return null;
    elsif octet_length(p_answer::text) > p_contract.max_answer then
        raise exception 'the answer has % bytes; the contract allows %', octet_length(p_answer::text), p_contract.max_answer
            using errcode = 'P4040', detail = format('scope %s.', p_scope),
            hint = 'Answer with a reference to what is large, or raise max_answer of the contract.';
    end if;
    return p_answer;
end
$$;
