-- pgonce._existing_row(): the row that pgonce._note_existing kept.
-- answers  null where it kept none
create or replace function pgonce._existing_row()
returns jsonb
language sql volatile
return nullif(current_setting('pgonce.existing', true), '')::jsonb;
