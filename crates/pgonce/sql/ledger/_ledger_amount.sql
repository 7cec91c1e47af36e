-- pgonce._ledger_amount(p_entry): what a plain entry of a group does to its account.
-- answers  the amount, debits positive; null where the entry is not plain: then pgonce._ledger_lines reads it, or says what is
--          wrong
-- note     inlined into pgonce.ledger_post. An entry that names a currency, or an amount that begins with 0, is not plain
create or replace function pgonce._ledger_amount(p_entry jsonb)
returns numeric
language sql immutable parallel safe
return case when jsonb_typeof(p_entry) = 'object' and (p_entry ? 'debit') <> (p_entry ? 'credit')
        and p_entry - '{account,debit,credit}'::text[] = '{}'
        and octet_length(coalesce(p_entry ->> 'debit', p_entry ->> 'credit')) <= 38
        and coalesce(p_entry ->> 'debit', p_entry ->> 'credit') collate "C" ~ '^[1-9][0-9]*$'
    then coalesce((p_entry ->> 'debit')::numeric, - (p_entry ->> 'credit')::numeric) end;
