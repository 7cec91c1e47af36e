-- pgonce._external_rules(p_provider): what a provider allows.
-- answers  its row, or the row '*'
create or replace function pgonce._external_rules(p_provider text)
returns pgonce.external_provider
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_rules pgonce.external_provider;
begin
    select p.* into strict v_rules from pgonce.external_provider p
     where p.provider = p_provider collate "C" and p.defined_at is not null or p.provider = '*'
     order by p.provider = '*' limit 1;
    -- What is added to a time must be one.
    if v_rules.keys_for > interval '5000 years' then
        v_rules.keys_for := interval '5000 years';
    end if;
    return v_rules;
end
$$;
