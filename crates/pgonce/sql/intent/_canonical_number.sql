-- pgonce._canonical_number(p_number): a JSON number in the form of RFC 8785, integers exact.
-- answers  an integer of 64 bits (signed or unsigned) that was written without a fraction: its digits.
--          Any other number: the nearest double, as ECMAScript writes it.
-- raises   22003 the number is too large for a double
-- note     PostgreSQL never writes a double as a decimal that lies exactly half-way to the next double
--          (1e23 as 9.999999999999999e+22), ECMAScript does where that is shorter. At one digit less
--          only such a decimal can still mean the same double, so both neighbours are tried.
create or replace function pgonce._canonical_number(p_number numeric)
returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp set extra_float_digits = 1
as $$
declare
    v_sign    text := case when p_number < 0 then '-' else '' end;
    v_double  double precision;
    v_parts   text[];
    v_digits  text;     -- significant digits
    v_point   integer;  -- the value is 0.DIGITS * 10^point
    v_shorter text;
    v_near    numeric;
begin
    if scale(p_number) = 0 and p_number between -9223372036854775808 and 18446744073709551615 then
        return p_number::text;
    elsif abs(p_number) < 1e-323 and abs(p_number) * 2::numeric ^ 1075 <= 1 then
        return '0';  -- the cast would raise an underflow here; JSON parsers round to zero
    end if;
    v_double := abs(p_number)::double precision;
    v_parts := regexp_match(v_double::text, '^([0-9]+)\.?([0-9]*)(?:e(.*))?$');
    v_digits := ltrim(v_parts[1] || v_parts[2], '0');
    v_point := length(v_parts[1]) + coalesce(v_parts[3], '0')::integer
        - (length(v_parts[1] || v_parts[2]) - length(v_digits));
    if length(v_digits) > 1 then
        for v_shorter in
            select (left(v_digits, -1)::numeric + n.up)::text from (values (0), (1)) n (up)
        loop
            -- Above the largest double the cast would raise.
            v_near := (v_shorter || 'e' || (v_point - length(v_digits) + 1))::numeric;
            if v_near <= 1.7976931348623157e308 and v_near::double precision = v_double then
                v_point := v_point + length(v_shorter) - length(v_digits) + 1;
                v_digits := v_shorter;
                exit;
            end if;
        end loop;
    end if;
    v_digits := rtrim(v_digits, '0');
    return v_sign || case
        when v_point between length(v_digits) and 21 then rpad(v_digits, v_point, '0')
        when v_point between 1 and 21 then left(v_digits, v_point) || '.' || substr(v_digits, v_point + 1)
        when v_point between -5 and 0 then '0.' || repeat('0', -v_point) || v_digits
        else left(v_digits, 1) || case when length(v_digits) > 1 then '.' else '' end || substr(v_digits, 2)
            || 'e' || case when v_point > 0 then '+' else '' end || v_point - 1
    end;
end
$$;
