-- pgonce._external_step(p_action, p_call, p_retry_after): what a command does next with a step.
-- answers  p_action, or by the call's status where it is null: done, failed or unknown
create or replace function pgonce._external_step(p_action text, p_call pgonce.external_call, p_retry_after interval default null)
returns pgonce.external_step
language sql stable
return row(coalesce(p_action, case (p_call).status when 'confirmed' then 'done' when 'failed' then 'failed' else 'unknown' end),
    (p_call).effect_key, pgonce._external_status(p_call), (p_call).reference, (p_call).response, (p_call).failure_code,
    (p_call).failure_message, p_retry_after, (p_call).sends, (p_call).sent_at)::pgonce.external_step;
