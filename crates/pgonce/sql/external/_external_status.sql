-- pgonce._external_status(p_call): the status that callers see.
-- answers  needs_operator: it may have happened, its deadline is over, and it was looked up since; where nobody does so, a minute
--          after the deadline
-- note     not stored, so that nobody has to be alive to set it; a webhook or a last look-up can still decide the call
create or replace function pgonce._external_status(p_call pgonce.external_call)
returns text
language sql stable
return case
    when (p_call).status in ('sent', 'unknown') and (p_call).deadline_at <= pgonce.now()
        and ((p_call).late_looks > 0 or (p_call).next_look_at is null or (p_call).deadline_at
            + least(interval '1 minute', (p_call).deadline_at - (p_call).first_sent_at) <= pgonce.now()) then 'needs_operator'
    else (p_call).status::text
end;
