-- pgonce._json_size(p_json, p_max): how many bytes a JSON has as text, which is what readers of it get.
-- answers  null for null. Where it is more than p_max: some number that is more than that, too
-- note     a number of 16 bytes may have 131,072 digits, so a text of gigabytes may come from what is short. Numbers are measured one by
--          one before all is made a text, but for what is so small that its text is bearable. A text is never shorter than a quarter
--          of what is stored uncompressed
create or replace function pgonce._json_size(p_json jsonb, p_max integer)
returns integer
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_digits integer;
    v_size   integer := 0;
begin
    if pg_column_size(p_json) / 8 > p_max then
        return pg_column_size(p_json) / 8;
    elsif pg_column_size(p_json) > 16384 or pg_column_compression(p_json) is not null then
        for v_digits in
            select octet_length(n::text) from jsonb_path_query(p_json, 'strict $.** ? (@.type() == "number")') n
        loop
            v_size := v_size + v_digits;
            if v_size > p_max then
                return v_size;
            end if;
        end loop;
    end if;
    return octet_length(p_json::text);
end
$$;
