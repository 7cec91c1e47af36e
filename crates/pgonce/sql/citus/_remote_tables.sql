-- pgonce._remote_tables(): tables of this database whose rows Citus keeps on other servers.
-- answers  their names; none without Citus
create or replace function pgonce._remote_tables()
returns setof text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_extension e where e.extname = 'citus') then
        return;
    end if;
    -- As text: without Citus there are no such tables. A write to a reference table is prepared on every node, so those are safe.
    return query execute
        'select p.logicalrelid::text from pg_dist_partition p
          where not (p.partmethod = ''n'' and (p.repmodel = ''t'' or p.colocationid = 0))
            and exists (select from pg_dist_shard s join pg_dist_placement l on l.shardid = s.shardid
                         where s.logicalrelid = p.logicalrelid and l.groupid <> (select g.groupid from pg_dist_local_group g))';
end
$$;
