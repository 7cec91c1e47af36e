-- pgonce._owner_or_session(p_owner): who holds a lease, for the eyes of an operator.
create or replace function pgonce._owner_or_session(p_owner text)
returns text
language sql stable
return left(coalesce(p_owner, concat_ws(':', nullif(current_setting('application_name'), ''),
    inet_client_addr(), pg_backend_pid())), 255);
