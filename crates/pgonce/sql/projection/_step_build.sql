-- pgonce._step_build(p_projection, p_purpose, p_limit): goes on with a build. In a transaction of its own each time: rows that
--          are changed very often in one transaction make it slow.
-- answers  how many events it looked at; 0: it has looked at all that were there when it began, and a rebuild also at what came
--          meanwhile, except for less than p_limit events, or as many as come while it looks: the end, which locks the projection,
--          has little to do
-- locks    the build: a second one waits
-- writes   the fresh table, the build's gates and how far it is
-- raises   42704 it is not being built; P4031 its events do not reach back any more
create or replace function pgonce._step_build(p_projection text, p_purpose text, p_limit integer default 1000)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_projection pgonce.projection := pgonce._require_projection(p_projection);
    v_build      pgonce.projection_build := pgonce._require_build(p_projection, p_purpose);
    v_page       record;
    v_count      integer := 0;
    v_before     integer;
    v_seen       pg_snapshot;
    v_event      pgonce.projected;
begin
    while v_build.lane < 16 and v_count < p_limit loop
        v_before := v_count;
        for v_page in
            select p.seq, p.event from pgonce._projection_page(v_projection, v_build.lane, v_build.after, p_limit - v_count) p
        loop
            v_build.events := v_build.events + pgonce._build_event(v_projection, v_build, v_page.event)::integer;
            v_build.after := v_page.seq;
            v_count := v_count + 1;
        end loop;
        if v_count = v_before then
            v_build.lane := v_build.lane + 1;
            v_build.after := 0;
        end if;
    end loop;
    -- What came since, once for each call. What commits after v_seen is read again by the next: its gate knows it. A build that is to
    -- be compared takes in only what the live projection has, which is known at its end.
    if v_count = 0 and p_purpose collate "C" = 'rebuild' then
        v_seen := pg_current_snapshot();
        for v_event in select e.* from pgonce._projection_rest(v_projection, v_build.seen) e loop
            -- After a restore the same ones may come in every round: only those that are new count.
            v_count := v_count + pgonce._build_event(v_projection, v_build, v_event)::integer;
        end loop;
        v_build.events := v_build.events + v_count;
        v_build.seen := v_seen;
        -- Beyond the last lane it is how many the last round had: where they do not become fewer, further rounds gain nothing.
        v_before := v_build.after;
        v_build.after := v_count;
        if v_count < p_limit or v_before between 1 and v_count then
            v_count := 0;
        end if;
    end if;
    update pgonce.projection_build b set lane = v_build.lane, after = v_build.after, seen = v_build.seen, events = v_build.events
     where b.tenant = '' and b.projection = p_projection collate "C" and b.purpose = p_purpose collate "C";
    return v_count;
end
$$;
