-- pgonce._region_is_current(): whether this database is still the one that joined: not recovered, promoted or made by a dump since.
-- answers  true; also on a standby, and where regions are not used
-- note     a base backup or a snapshot of the storage that was simply started looks as before: nothing here can notice it
create or replace function pgonce._region_is_current()
returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
begin atomic
    select case when pg_is_in_recovery() then true
                else coalesce((select i.life = pgonce._database_life() and i.timeline = pgonce._timeline() and i.epoch = r.epoch
                                 from pgonce.region r, pgonce.installation i where r.is_self), true) end;
end;
