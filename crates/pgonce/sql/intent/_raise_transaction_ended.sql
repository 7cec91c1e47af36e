-- pgonce._raise_transaction_ended(): says that an attempt is not in its transaction any more, where
--          only an expression fits.
-- raises   2D000, always
create or replace function pgonce._raise_transaction_ended()
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the transaction of this attempt was ended before its success was recorded'
        using errcode = '2D000',
        detail = 'A COMMIT or ROLLBACK was sent by hand, or claim and success were called outside one transaction.',
        hint = 'Begin, claim, work, pgonce.succeed, commit: in this order and in one transaction. What was committed by hand has happened and is not acknowledged; what was rolled back is gone.';
end
$$;
