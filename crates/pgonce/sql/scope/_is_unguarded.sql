-- pgonce._is_unguarded(p_scope): may a claim in this scope be made without looking at its contract?
-- answers  false: a contract of the scope, or that of scope "*", has a commit guard; pgonce._guard_claim looks which one holds
-- note     inlined into the claims
create or replace function pgonce._is_unguarded(p_scope text)
returns boolean
language sql stable parallel safe
return '*' <> all (pgonce._guarded_scopes()) and p_scope collate "C" <> all (pgonce._guarded_scopes());
