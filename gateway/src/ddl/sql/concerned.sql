
-- The published relations that a command concerns: those it names, those that hang together with them, and those
-- that it took out of what is published.
DECLARE
    moved oid[] := '{}';
    reached oid[] := named;
    ever_logged oid[] := ARRAY(SELECT a.oid FROM unnest(altered) AS a(oid) WHERE a.oid <> ALL(created));
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
        AND NOT EXISTS (SELECT FROM pg_publication) THEN
        RETURN '{}';
    END IF;
    IF cardinality(altered) > 0 THEN
        IF EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY(altered) AND c.relkind = 'p') THEN
            -- DETACH names the root only: the leaf is among what this transaction wrote.
            reached := reached || ARRAY(SELECT c.oid FROM pg_class c
                WHERE age(c.xmin) BETWEEN -100000000 AND 0 AND c.relkind IN ('r', 'p') AND NOT c.relispartition);
        END IF;
        IF EXISTS (SELECT FROM pg_publication_namespace) THEN
            -- SET SCHEMA may have taken it out of a published one: this transaction wrote its tie to the schema, and
            -- did not make the table (its first system column is never written again).
            moved := ARRAY(SELECT c.oid FROM pg_class c
                JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                    AND d.refclassid = 'pg_namespace'::regclass
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
                WHERE c.oid = ANY(altered) AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
                    AND age(d.xmin) BETWEEN -100000000 AND 0 AND age(a.xmin) NOT BETWEEN -100000000 AND 0);
        END IF;
    END IF;
    reached := ARRAY(SELECT r.oid FROM rindle._reach(reached, types) AS r(oid));
    RETURN ARRAY(SELECT p.oid FROM rindle._published(reached, ever_logged) AS p(oid)
        UNION SELECT m.oid FROM unnest(moved) AS m(oid));
END
