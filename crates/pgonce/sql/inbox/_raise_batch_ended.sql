-- pgonce._raise_batch_ended(): says that a consumer's batch is not in its transaction any more, where only an
--          expression fits.
-- raises   2D000, always
create or replace function pgonce._raise_batch_ended()
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the transaction of this message was ended by its handler' using errcode = '2D000',
        detail = 'A COMMIT or ROLLBACK was sent by hand.',
        hint = 'Leave the end of the transaction to the consumer. What was committed by hand is there, with the mark that the message was applied.';
end
$$;
