-- pgonce.open_attempt(): marks this transaction as the one that an attempt lives in.
-- answers  'fresh'
-- writes   the setting pgonce.attempt, until the end of the transaction
-- note     a COMMIT or ROLLBACK sent by hand takes the mark away, and so does a rollback to a
--          savepoint from before the claim; see pgonce.insist_on_open_attempt
create or replace function pgonce.open_attempt()
returns text
language sql volatile
return set_config('pgonce.attempt', 'fresh', true);
