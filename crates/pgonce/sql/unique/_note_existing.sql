-- pgonce._note_existing(p_row): keeps the row that an insert ran into.
-- answers  false: the row is not to be changed
-- writes   the setting pgonce.existing, until the end of the transaction
create or replace function pgonce._note_existing(p_row jsonb)
returns boolean
language sql volatile
return set_config('pgonce.existing', p_row::text, true) is null;
