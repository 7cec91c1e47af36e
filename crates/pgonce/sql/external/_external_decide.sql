-- pgonce._external_decide(p_call, p_outcome, p_reference, p_response, p_answer, p_code, p_message, p_by): applies what is known
--          about the outcome of a call: confirmed or failed.
-- answers  applied; known: it was decided so before; disputed: it was decided otherwise before, which stays. What is applied is disputed
--          from then on where the call had another reference: the provider may have taken it twice
-- locks    nothing: the caller holds the rows of the intent and of the call
-- writes   the call; where its outcome is that of the command and nobody is at work on it, the command
create or replace function pgonce._external_decide(p_call pgonce.external_call, p_outcome pgonce.external_status,
    p_reference text, p_response jsonb, p_answer jsonb, p_code text, p_message text, p_by text)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz := pgonce.now();
    v_other boolean := (p_call).status in ('confirmed', 'failed') and (p_call).status <> p_outcome
        or (p_call).reference <> p_reference collate "C" and (p_call).status = 'confirmed';
begin
    if v_other then
        update pgonce.external_call c
           set disputed = left(format('%s, reference %s, by %s', p_outcome, coalesce(p_reference, 'none'), p_by), 1000)
         where c.tenant = (p_call).tenant and c.effect_key = (p_call).effect_key;
        return 'disputed';
    elsif (p_call).status = p_outcome then
        update pgonce.external_call c
           set reference = coalesce(c.reference, p_reference), response = coalesce(c.response, p_response)
         where c.tenant = (p_call).tenant and c.effect_key = (p_call).effect_key
           and (c.reference is null and p_reference is not null or c.response is null and p_response is not null);
        return 'known';
    end if;
    update pgonce.external_call c
       set status = p_outcome, decided_at = v_now, decided_by = p_by, next_look_at = null,
           -- As long as the provider knows its key the next life must not use that, either.
           expires_at = greatest(v_now + (pgonce._contract_of(c.tenant, c.scope, true)).retention,
               c.sent_at + (pgonce._external_rules(c.provider)).keys_for),
           reference = coalesce(p_reference, c.reference), response = coalesce(p_response, c.response),
           disputed = case when c.reference <> p_reference collate "C"
               then left(format('%s, reference %s before %s, by %s', p_outcome, c.reference, p_reference, p_by), 3000) else c.disputed end,
           failure_code = case p_outcome when 'failed' then left(coalesce(p_code, 'failed'), 255) end,
           failure_message = case p_outcome when 'failed' then left(p_message, 4000) end
     where c.tenant = (p_call).tenant and c.effect_key = (p_call).effect_key;
    if (p_call).decides then
        perform pgonce._external_settle_command(p_call, p_outcome, p_answer, coalesce(p_code, 'failed'), p_message, p_by);
    end if;
    return 'applied';
end
$$;
