-- pgonce._like_patterns(p_patterns): patterns with * for any text, as LIKE wants them.
-- answers  null for null, and for nothing but *: then everything fits
-- raises   22023 an empty list, or one with a null: nothing would fit it
create or replace function pgonce._like_patterns(p_patterns text[])
returns text[]
language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
as $$
begin
    if cardinality(p_patterns) = 0 or exists (select from unnest(p_patterns) g where g is null) then
        raise exception 'a list of patterns that is empty, or has a null in it, lets nothing through' using errcode = '22023',
            hint = 'Leave it out, or say {*}, where everything is wanted; else name patterns such as {orders,refunds.*}.';
    end if;
    return case when p_patterns is not null and p_patterns <> array['*'] then
        (select array_agg(replace(replace(replace(replace(g collate "C", E'\\', E'\\\\'), '_', E'\\_'), '%', E'\\%'), '*', '%'))
           from unnest(p_patterns) g) end;
end
$$;
