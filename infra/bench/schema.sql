-- The source of the benchmark. Every row follows from its id alone, about 200 bytes each with Postgres' row header.
-- bench_mark is the clock of all measurements: its only row is written after the work that is timed, so who shows its
-- newest number has everything that was committed before it.

create table bench_item (
    id      bigint primary key,
    hits    int,
    score   int,
    stamp   bigint,
    price   numeric(12, 2),
    seen    timestamptz,
    tag     text,
    label   text,
    active  boolean,
    details jsonb
);
create table bench_mark (id int primary key, n bigint not null, note text not null);
insert into bench_mark values (1, 0, 'mark 0');

create function bench_rows(first bigint, last bigint) returns setof bench_item language sql stable as $$
    select n,
           (n % 1000)::int,
           (n * 13 % 100000)::int,
           n * 1000033,
           (n * 53 % 1000000000 / 100.0)::numeric(12, 2),
           timestamptz '2026-03-01 00:00:00+00' + n * interval '1.000217 seconds',
           md5(n::text),
           md5((n + 1)::text) || left(md5((n + 2)::text), 10),
           n % 2 = 1,
           jsonb_build_object('bucket', n % 100, 'token', left(md5((n + 3)::text), 16))
    from generate_series(first, last) n
$$;

-- A backlog of small transactions, each of five updates of one row. Every fifth also inserts one row and deletes one:
-- inserted are the ids from insert_from on, deleted those from delete_from on, updated the "span" ids from update_from
-- on, in steps that are spread over the whole span. "turn" makes each call take other rows in another order.
create procedure bench_backlog(
    transactions int, turn int, update_from bigint, span bigint, insert_from bigint, delete_from bigint
) language plpgsql as $$
declare
    target bigint;
begin
    for n in 0 .. transactions - 1 loop
        for part in 0 .. 4 loop
            target := update_from + ((n * 5 + part) * 494431::bigint + turn * 7877) % span;
            update bench_item
            set hits = hits + 1,
                price = price + 0.01,
                seen = seen + interval '1 second',
                tag = md5((target * 7 + n)::text)
            where id = target;
        end loop;
        if n % 5 = 4 then
            insert into bench_item select * from bench_rows(insert_from + n / 5, insert_from + n / 5);
            delete from bench_item where id = delete_from + n / 5;
        end if;
        commit;
    end loop;
end
$$;
