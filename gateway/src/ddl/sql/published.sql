
-- Those of the relations $1 that some publication publishes, and what stands with one of them in a partition tree.
-- Unlogged ones are not published, unless they are among $2: they may have been logged before. An old snapshot does not
-- show what others have published since: there any may be.
SELECT tree.oid FROM (
    SELECT here.oid, bool_or((here.logged OR here.oid = ANY($2))
        AND (current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
            OR EXISTS (SELECT FROM pg_publication p WHERE p.puballtables)
            OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = ANY(here.line))
            OR EXISTS (SELECT FROM pg_class a JOIN pg_publication_namespace s ON s.pnnspid = a.relnamespace
                WHERE a.oid = ANY(here.line)))) OVER (PARTITION BY here.line[cardinality(here.line)]) AS published
    FROM (
        SELECT c.oid, c.relpersistence = 'p' AS logged, CASE WHEN c.relispartition
            THEN ARRAY(SELECT a.relid::oid FROM pg_partition_ancestors(c.oid) WITH ORDINALITY a(relid, above)
                ORDER BY a.above)
            ELSE ARRAY[c.oid] END AS line
        FROM pg_class c
        -- Below 16384 is what initdb made.
        WHERE c.oid = ANY($1) AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid >= 16384
            AND c.relnamespace <> 'rindle'::regnamespace
        ) here
    ) tree
WHERE tree.published
