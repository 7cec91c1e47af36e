-- pgonce._external_rules(p_provider): what a provider allows.
-- answers  its row, or the row '*'
create or replace function pgonce._external_rules(p_provider text)
returns pgonce.external_provider
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    c_longest constant interval := '5000 years';
    v_rules   pgonce.external_provider;
begin
    select p.* into strict v_rules from pgonce.external_provider p
     where p.provider = p_provider collate "C" and p.defined_at is not null or p.provider = '*'
     order by p.provider = '*' limit 1;
    -- What is added to a time, or taken from it, must leave one.
    v_rules.keys_for := case when v_rules.keys_for > c_longest then c_longest else v_rules.keys_for end;
    v_rules.look_after := least(v_rules.look_after, c_longest);
    v_rules.backoff := least(v_rules.backoff, c_longest);
    v_rules.max_backoff := least(v_rules.max_backoff, c_longest);
    v_rules.deadline := least(v_rules.deadline, c_longest);
    v_rules.rate_per := least(v_rules.rate_per, c_longest);
    v_rules.trip_for := least(v_rules.trip_for, c_longest);
    v_rules.keep := least(v_rules.keep, c_longest);
    return v_rules;
end
$$;
