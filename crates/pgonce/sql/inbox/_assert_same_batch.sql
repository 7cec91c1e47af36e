-- pgonce._assert_same_batch(): is this still the transaction that a consumer opened for its batch?
-- answers  true
-- raises   2D000 it was ended by hand, by a handler say
-- note     a consumer opens a batch by setting pgonce.batch until the end of the transaction
create or replace function pgonce._assert_same_batch()
returns boolean
language sql volatile
return case when current_setting('pgonce.batch', true) > '' then true else pgonce._raise_batch_ended() end;
