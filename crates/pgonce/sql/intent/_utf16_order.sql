-- pgonce._utf16_order(p_name): a text whose byte order is the order of p_name in UTF-16 code units.
-- answers  the UTF-8 bytes in hex, one by one. UTF-16 sorts U+10000 and above (UTF-8 F0 to F4) before
--          U+E000 to U+FFFF (UTF-8 EE and EF), so EE and EF become FE and FF, which UTF-8 does not use.
-- note     compare with collate "C"; the space after each byte keeps replace() from matching across two
create or replace function pgonce._utf16_order(p_name text)
returns text
language sql immutable strict parallel safe
return replace(replace(
    regexp_replace(encode(convert_to(p_name, 'UTF8'), 'hex'), '(..)', '\1 ', 'g'),
    'ee ', 'fe '), 'ef ', 'ff ');
