-- pgonce._is_after(p_to, p_to_minor, p_from, p_from_minor): does a position of a partition come after another?
-- answers  true where there is no position to come after; not true where one is missing
-- note     inlined
create or replace function pgonce._is_after(p_to bigint, p_to_minor bigint, p_from bigint, p_from_minor bigint)
returns boolean
language sql immutable parallel safe
return p_to is not null and p_to_minor is not null
    and (p_from is null or (p_to, p_to_minor) > (p_from, p_from_minor));
