-- pgonce._is_open_attempt(p_tenant, p_scope, p_key): does an attempt at this intent live in this transaction?
-- note     not for the hot path, which compares the mark itself; see pgonce._open_attempt
create or replace function pgonce._is_open_attempt(p_tenant text, p_scope text, p_key text)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark text collate "C" := coalesce(current_setting('pgonce.attempt', true), '');
    v_name text collate "C" := pgonce._intent_name(p_tenant, p_scope, p_key);
begin
    return v_name = substr(v_mark, case when v_mark ^@ '@' then strpos(v_mark, ';') else 0 end + 1) collate "C"
        or strpos(',' || coalesce(current_setting('pgonce.attempts', true), ''),
            ',' || hashtextextended(v_name, 0)::text || ',') > 0;
end
$$;
