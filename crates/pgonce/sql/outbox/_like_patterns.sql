-- pgonce._like_patterns(p_patterns): patterns with * for any text, as LIKE wants them.
-- answers  null for null, and for nothing but *: then everything fits
create or replace function pgonce._like_patterns(p_patterns text[])
returns text[]
language sql immutable parallel safe
return case when p_patterns is not null and p_patterns <> array['*'] then
    (select array_agg(replace(replace(replace(replace(g collate "C", '\', '\\'), '_', '\_'), '%', '\%'), '*', '%'))
       from unnest(p_patterns) g) end;
