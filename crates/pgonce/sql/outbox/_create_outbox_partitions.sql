-- pgonce._create_outbox_partitions(): creates the log's next partitions, so that two are always ahead.
-- answers  how many it created
-- locks    the log against other changes of its partitions, not against writers; waits at most a
--          moment for them, then leaves it to the next call. Where nobody called it for so long that events are in
--          outbox_default, PostgreSQL has to know that none of them belongs to the new partition: it looks through 4 MiB of
--          them under the lock. Where there are more it takes four calls, none of which keeps writers waiting: a constraint, its
--          validation beside the writers, the partition, and the sequence moved on to it
-- writes   pgonce.outbox_partition; how many numbers it has left out, in pgonce.sweep
-- note     with the owner's rights: relays call it. Each call leaves what writers can live with if it is the last one: the
--          constraint lets ten billion more events in, and the sequence moves when the partition is there for every statement
create or replace function pgonce._create_outbox_partitions()
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '15ms'
as $$
declare
    c_small constant bigint := 4194304;
    c_gap   constant bigint := 10000000000;
    v_rows  bigint;
    v_last  bigint;
    v_from  bigint;
    v_to    bigint;
    v_bound bigint;
    v_valid boolean;
    v_count integer := 0;
begin
    select l.partition_rows into strict v_rows from pgonce.outbox_state l for update;
    loop
        v_last := coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0);
        select max(p.to_seq) into v_from from pgonce.outbox_partition p;
        select min(p.from_seq) into v_to from pgonce.outbox_partition p where p.to_seq > v_last + 1;
        if v_to > v_last + c_gap / 2 then
            -- Under a lock that waits for writers: a statement from before would not know the partition.
            lock table only pgonce.outbox in share mode;
            v_last := coalesce(pg_sequence_last_value('pgonce.outbox_seq'::regclass), 0);
            perform setval('pgonce.outbox_seq', v_to - 1);
            insert into pgonce.sweep as w (name, next_block, swept_at) values ('outbox_skipped', v_to - 1 - v_last, pgonce.now())
            on conflict (tenant, name) do update set next_block = w.next_block + excluded.next_block, swept_at = excluded.swept_at;
            return v_count;
        elsif v_from > v_last + 2 * v_rows or v_count >= 16 then
            return v_count;
        end if;
        v_to := v_from + v_rows;
        v_bound := null;
        if v_from <= v_last + 1 then
            -- Late: what is being written now goes to outbox_default. Begin well beyond it, and with a partition that is
            -- enough: each one that is attached scans outbox_default, and its writers wait.
            select substr(c.conname, 7)::bigint, c.convalidated into v_bound, v_valid from pg_catalog.pg_constraint c
             where c.conrelid = 'pgonce.outbox_default'::regclass and c.conname ~ '^below_[0-9]+$';
            if pg_relation_size('pgonce.outbox_default'::regclass) <= c_small then
                v_from := v_last + v_rows;
            elsif v_bound is null then
                execute format('alter table pgonce.outbox_default add constraint below_%1$s check (seq < %1$s) not valid', v_last + c_gap);
                return v_count;
            elsif not v_valid then
                execute format('alter table pgonce.outbox_default validate constraint below_%s', v_bound);
                return v_count;
            else
                v_from := v_bound;
            end if;
            v_to := v_from + 3 * v_rows;
        end if;
        execute format('create table pgonce.outbox_%s (like pgonce.outbox including all)', v_from);
        execute format('alter table pgonce.outbox attach partition pgonce.outbox_%s for values from (%s) to (%s)',
            v_from, v_from, v_to);
        insert into pgonce.outbox_partition (from_seq, to_seq) values (v_from, v_to);
        v_count := v_count + 1;
        if v_bound is not null then
            execute format('alter table pgonce.outbox_default drop constraint below_%s', v_bound);
            return v_count;
        end if;
    end loop;
exception when lock_not_available then
    return 0;
end
$$;
revoke execute on function pgonce._create_outbox_partitions() from public;
