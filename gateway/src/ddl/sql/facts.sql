
-- What every document of facts begins with, and the facts of the relations. `seen` is what was seen when it was looked up
-- which ones these are, or less: in READ COMMITTED each statement may see more.
DECLARE
    facts jsonb := jsonb_build_object('v', 1, 'tag', tag, 'snapshot', seen);
    relations jsonb;
    types jsonb;
    own jsonb;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        facts := facts || '{"stale": true}';
    END IF;
    IF cardinality(shown) = 0 THEN
        RETURN facts;
    END IF;
    relations := (SELECT jsonb_agg(r.relation) FROM rindle._relations(shown) AS r(relation));
    -- Most tables have nothing but plain base types, which are made of nothing.
    IF EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = ANY(shown) AND a.attnum > 0 AND NOT a.attisdropped
            AND (t.typtype <> 'b' OR t.typelem <> 0)) THEN
        types := (SELECT jsonb_agg(t.type) FROM rindle._types(shown) AS t(type));
    END IF;
    facts := facts || jsonb_build_object('relations', coalesce(relations, '[]'));
    -- Whose name and schema this transaction wrote: nobody else does before it ends. Of any other the message may be old.
    -- What others wrote is older than an old snapshot; in READ COMMITTED some of it may be younger than this transaction.
    own := (SELECT jsonb_agg(DISTINCT c.oid::int8) FROM pg_class c WHERE c.oid = ANY(shown)
        AND age(c.xmin) BETWEEN -100000000 AND 0);
    IF own IS NOT NULL THEN
        facts := facts || jsonb_build_object('own', own);
    END IF;
    IF types IS NOT NULL THEN
        facts := facts || jsonb_build_object('types', types);
    END IF;
    RETURN facts;
END
