-- pgonce.day_of(p_message_id): the day that a message id carries: that of a UUID of version 7.
-- answers  -infinity where it carries none
-- note     it decides which partition of pgonce.inbox_marker an id belongs to, for ever: never change it
create or replace function pgonce.day_of(p_message_id text)
returns date
language sql immutable parallel safe
return case when octet_length(p_message_id) = 36 and substr(p_message_id, 15, 1) = '7'
     and p_message_id collate "C" ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$'
    then date '1970-01-01' + (('x' || left(p_message_id, 8) || substr(p_message_id, 10, 4))::bit(48)::bigint
        / 86400000)::integer
    else date '-infinity' end;
