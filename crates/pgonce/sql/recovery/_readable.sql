-- pgonce._readable(p_text): a text that every client can read.
-- answers  the text; in a database without an encoding (SQL_ASCII), with ? for every byte that is not ASCII
-- note     one such key would otherwise keep a client that expects UTF-8 from reading the whole list
create or replace function pgonce._readable(p_text text)
returns text
language sql stable parallel safe
return case when getdatabaseencoding() = 'SQL_ASCII'
    then regexp_replace(p_text collate "C", '[^' || chr(1) || '-' || chr(127) || ']', '?', 'g') else p_text end;
