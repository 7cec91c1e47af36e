-- pgonce._lane_of(p_tenant, p_subject): which of the sixteen lanes of the log a subject is in.
-- answers  0 to 15; the same for ever: events of one subject never change lanes
create or replace function pgonce._lane_of(p_tenant text, p_subject text)
returns smallint
language sql immutable parallel safe
return (hashtextextended((p_tenant || chr(31) || p_subject) collate "C", 20260103) & 15)::smallint;
