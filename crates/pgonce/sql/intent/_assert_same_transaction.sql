-- pgonce._assert_same_transaction(): is this still the transaction in which the claim was made?
-- answers  true
-- raises   2D000 it was ended by hand, and its effect parted from its acknowledgement
-- note     for an SDK to ask together with the success; pgonce.succeed asks for its own intent
create or replace function pgonce._assert_same_transaction()
returns boolean
language sql volatile
return case when current_setting('pgonce.attempt', true) > '' then true
    else pgonce._raise_transaction_ended() end;
