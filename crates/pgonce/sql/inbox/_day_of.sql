-- pgonce._day_of(p_message_id): the day that a message id carries: that of a UUID of version 7.
-- answers  -infinity where it carries none
-- note     it decides which partition of pgonce.inbox_marker an id belongs to, for ever: never change what
--          it answers. One pattern for the whole would take three times as long: so the lines are found by
--          LIKE, and that everything else is a digit by what is left without them
create or replace function pgonce._day_of(p_message_id text)
returns date
language sql immutable parallel safe
return case when octet_length(p_message_id) = 36
     and p_message_id collate "C" like '________-____-7___-____-____________'
     and p_message_id collate "C" !~ '[^0-9a-fA-F-]' and octet_length(replace(p_message_id collate "C", '-', '')) = 32
     and strpos('89abAB', substr(p_message_id collate "C", 20, 1)) > 0
    then date '1970-01-01' + (('x' || left(p_message_id, 8) || substr(p_message_id, 10, 4))::bit(48)::bigint
        / 86400000)::integer
    else date '-infinity' end;
