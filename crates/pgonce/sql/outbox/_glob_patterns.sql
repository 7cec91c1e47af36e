-- pgonce._glob_patterns(p_patterns): patterns as they were written, from what pgonce._like_patterns made of them.
create or replace function pgonce._glob_patterns(p_patterns text[])
returns text[]
language sql immutable parallel safe
return (select array_agg(replace(replace(replace(replace(replace(replace(
        g, '\\', chr(1)), '\%', chr(2)), '%', '*'), '\_', '_'), chr(2), '%'), chr(1), '\'))
    from unnest(p_patterns) g);
