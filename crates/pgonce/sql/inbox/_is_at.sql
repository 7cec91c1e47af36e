-- pgonce._is_at(p_position, p_minor, p_from, p_from_minor): are two positions of a partition the same, null included?
-- note     inlined
create or replace function pgonce._is_at(p_position bigint, p_minor bigint, p_from bigint, p_from_minor bigint)
returns boolean
language sql immutable parallel safe
return p_position is not distinct from p_from and p_minor is not distinct from p_from_minor;
