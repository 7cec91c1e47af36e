-- pgonce._raise_long_answer(): says that an answer is too long to be kept without a look at its contract, where only an
--          expression fits.
-- raises   54000, always; the constraint answer_is_short names it
create or replace function pgonce._raise_long_answer()
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the answer is longer than what is kept without a look at the contract' using errcode = '54000',
        constraint = 'answer_is_short',
        detail = 'Everything was rolled back, and nothing is recorded.',
        hint = 'The SDK sends the command again, with that look.';
end
$$;
