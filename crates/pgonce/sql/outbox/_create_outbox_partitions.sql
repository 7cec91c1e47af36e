-- pgonce._create_outbox_partitions(): creates the log's next partitions, so that two are always ahead.
-- answers  how many it created
-- locks    the log against other changes of its partitions, not against writers; waits at most a
--          moment for them, then leaves it to the next call. Where it is late, writers wait for one scan of outbox_default
-- note     with the owner's rights: relays call it
create or replace function pgonce._create_outbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    v_rows  bigint;
    v_last  bigint;
    v_from  bigint;
    v_to    bigint;
    v_count integer := 0;
begin
    select l.partition_rows into strict v_rows from pgonce.outbox_state l for update;
    loop
        v_last := coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0);
        select max(p.to_seq) into v_from from pgonce.outbox_partition p;
        if v_from > v_last + 2 * v_rows or v_count >= 16 then
            return v_count;
        end if;
        v_to := v_from + v_rows;
        if v_from <= v_last + 1 then
            -- Late: what is being written now goes to outbox_default. Begin well beyond it, and with a partition that is
            -- enough: each one that is attached scans outbox_default, and its writers wait.
            v_from := v_last + v_rows;
            v_to := v_from + 3 * v_rows;
        end if;
        execute format('create table pgonce.outbox_%s (like pgonce.outbox including all)', v_from);
        execute format('alter table pgonce.outbox attach partition pgonce.outbox_%s for values from (%s) to (%s)',
            v_from, v_from, v_to);
        insert into pgonce.outbox_partition (from_seq, to_seq) values (v_from, v_to);
        v_count := v_count + 1;
    end loop;
exception when lock_not_available then
    return 0;
end
$$;
revoke execute on function pgonce._create_outbox_partitions() from public;
