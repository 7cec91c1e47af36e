-- pgonce._guarded_scopes(): the scopes with a contract that has a commit guard, or had one.
-- note     its body is a switch, which pgonce._guard_scopes writes: a constant in the plan of every claim, so that a scope
--          without a guard pays for a comparison and looks nothing up. Not immutable: plans must change with it
create or replace function pgonce._guarded_scopes()
returns text[]
language sql stable parallel safe
return array[]::text[];
