-- pgonce._ledger_lines(p_entries): reads the entries of a group.
-- answers  its accounts, its amounts, debits positive, and the currencies that entries name
-- raises   22023 p_entries is not an array of 2 to 1000 objects, each with an account of its own and a debit or a credit; P4073
--          an amount has more than 38 digits; P4074 an amount is not a positive integer
create or replace function pgonce._ledger_lines(p_entries jsonb, out accounts text[], out amounts numeric[], out currencies text[])
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_entry  jsonb;
    v_amount text collate "C";
    v_debit  boolean;
begin
    if (case jsonb_typeof(p_entries) when 'array' then jsonb_array_length(p_entries) between 2 and 1000 end) is not true then
        raise exception 'a group needs an array of 2 to 1000 entries' using errcode = '22023',
            hint = 'For example ''[{"account": "cash", "debit": 100}, {"account": "sales", "credit": 100}]''.';
    end if;
    for v_line in 1 .. jsonb_array_length(p_entries) loop
        v_entry := p_entries -> (v_line - 1);
        v_debit := v_entry ? 'debit';
        v_amount := v_entry ->> case when v_debit then 'debit' else 'credit' end;
        accounts[v_line] := v_entry ->> 'account';
        if (v_entry ? 'credit') = v_debit or (octet_length(accounts[v_line]) between 1 and 255) is not true
            or jsonb_typeof(v_entry) <> 'object' or v_entry - '{account,debit,credit,currency}'::text[] <> '{}'
        then
            raise exception 'entry % does not name an account and either a debit or a credit', v_line using errcode = '22023',
                hint = 'For example {"account": "cash", "debit": 100}; it may have a currency, and nothing else.';
        elsif accounts[v_line] = any (accounts[1 : v_line - 1]) then
            raise exception 'account "%" stands in the group twice', accounts[v_line] using errcode = '22023',
                hint = 'Add up what the group does to it.';
        elsif v_amount ~ '^[0-9]{39,}$' then
            raise exception 'the amount of entry % has more than 38 digits', v_line using errcode = 'P4073',
                hint = 'Amounts are in minor units, such as cents.';
        elsif (v_amount ~ '^0*[1-9][0-9]*$') is not true then
            raise exception 'the amount of entry % is not a positive integer', v_line using errcode = 'P4074',
                hint = 'Give minor units, such as cents; whether it is a debit or a credit says the direction.';
        end if;
        amounts[v_line] := case when v_debit then v_amount::numeric else - v_amount::numeric end;
        currencies[v_line] := v_entry ->> 'currency';
    end loop;
end
$$;
