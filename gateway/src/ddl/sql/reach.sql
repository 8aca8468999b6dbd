
-- What a change of relations $1 and types $2 may change: what inherits from them or is a partition of them, and whatever has
-- a column of a type that is made of such a type, or of the rows of such a relation.
WITH RECURSIVE reach(is_type, oid) AS (
    SELECT false, named.oid FROM unnest($1) AS named(oid)
    UNION ALL
    SELECT true, named.oid FROM unnest($2) AS named(oid)
    UNION
    SELECT next.is_type, next.oid
    FROM reach r
    CROSS JOIN LATERAL (
        SELECT false, i.inhrelid FROM pg_inherits i WHERE NOT r.is_type AND i.inhparent = r.oid
        UNION ALL
        SELECT true, c.reltype FROM pg_class c WHERE NOT r.is_type AND c.oid = r.oid AND c.reltype <> 0
        UNION ALL
        SELECT d.classid = 'pg_type'::regclass, d.objid FROM pg_depend d
        WHERE r.is_type AND d.refclassid = 'pg_type'::regclass AND d.refobjid = r.oid
            AND (d.classid = 'pg_type'::regclass OR d.classid = 'pg_class'::regclass)
        ) next(is_type, oid))
SELECT c.oid FROM reach r JOIN pg_class c ON c.oid = r.oid
WHERE NOT r.is_type AND c.relkind IN ('r', 'p')
