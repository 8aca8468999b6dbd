WITH RECURSIVE used(oid) AS (
    SELECT a.atttypid FROM pg_attribute a
    WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT part.oid
    FROM used u JOIN pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem UNION ALL SELECT t.typbasetype
        UNION ALL SELECT r.rngsubtype FROM pg_range r
            WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid
        UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) part(oid)
    WHERE part.oid <> 0)
SELECT jsonb_build_array(t.oid::int8, format('%I.%I', n.nspname, t.typname), t.typtype,
    jsonb_build_array(nullif(t.typelem, 0)::int8, nullif(t.typbasetype, 0)::int8,
        (SELECT r.rngsubtype::int8 FROM pg_range r WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid)),
    CASE t.typtype
    WHEN 'e' THEN (SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder)
        FROM pg_enum e WHERE e.enumtypid = t.oid)
    WHEN 'c' THEN (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.atttypid::int8, a.atttypmod) ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
    END)
FROM used u JOIN pg_type t ON t.oid = u.oid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype IN ('e', 'c') OR t.typelem <> 0 AND t.typlen = -1 OR t.typtype IN ('d', 'r', 'm')
ORDER BY t.oid
