-- pgonce._sha1(p_bytes): SHA-1, which PostgreSQL has not and UUIDs of version 5 are made of.
-- note     not for secrets
create or replace function pgonce._sha1(p_bytes bytea)
returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp
as $$
declare
    v_message bytea := p_bytes || '\x80'::bytea
        || decode(repeat('00', (119 - length(p_bytes) % 64) % 64), 'hex') || int8send(length(p_bytes) * 8::bigint);
    v_words   bigint[];
    v_hash    bigint[] := array[1732584193, 4023233417, 2562383102, 271733878, 3285377520];
    v_now     bigint[];
    v_bits    bigint;
begin
    for v_block in 0 .. length(v_message) / 64 - 1 loop
        for v_at in 0 .. 79 loop
            if v_at < 16 then
                v_bits := ('x' || encode(substr(v_message, v_block * 64 + v_at * 4 + 1, 4), 'hex'))::bit(32)::bigint;
            else
                v_bits := v_words[v_at - 3] # v_words[v_at - 8] # v_words[v_at - 14] # v_words[v_at - 16];
                v_bits := ((v_bits << 1) | (v_bits >> 31)) & 4294967295;
            end if;
            v_words[v_at] := v_bits;
        end loop;
        v_now := v_hash;
        for v_at in 0 .. 79 loop
            v_bits := case v_at / 20
                when 0 then ((v_now[2] & v_now[3]) | (~ v_now[2] & v_now[4])) + 1518500249
                when 1 then (v_now[2] # v_now[3] # v_now[4]) + 1859775393
                when 2 then ((v_now[2] & v_now[3]) | (v_now[2] & v_now[4]) | (v_now[3] & v_now[4])) + 2400959708
                else (v_now[2] # v_now[3] # v_now[4]) + 3395469782 end;
            v_bits := (((v_now[1] << 5) | (v_now[1] >> 27)) & 4294967295) + (v_bits & 8589934591) + v_now[5] + v_words[v_at];
            v_now := array[v_bits & 4294967295, v_now[1], ((v_now[2] << 30) | (v_now[2] >> 2)) & 4294967295, v_now[3], v_now[4]];
        end loop;
        for v_at in 1 .. 5 loop
            v_hash[v_at] := (v_hash[v_at] + v_now[v_at]) & 4294967295;
        end loop;
    end loop;
    return substr(int8send(v_hash[1]), 5) || substr(int8send(v_hash[2]), 5) || substr(int8send(v_hash[3]), 5)
        || substr(int8send(v_hash[4]), 5) || substr(int8send(v_hash[5]), 5);
end
$$;
