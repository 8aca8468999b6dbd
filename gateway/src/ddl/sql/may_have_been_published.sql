
-- For what is gone from the schemas named. A table of no publication may have been the leaf of one that is in one; an
-- index stands in the schema of its table.
BEGIN
    -- An old snapshot does not show what others have published since.
    RETURN current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
        OR EXISTS (SELECT FROM pg_publication p WHERE p.puballtables)
        OR EXISTS (SELECT FROM pg_publication_namespace s JOIN pg_namespace n ON n.oid = s.pnnspid
            WHERE n.nspname = ANY(spaces))
        OR EXISTS (SELECT FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
            WHERE c.relkind = 'p' OR NOT tables
                AND c.relnamespace IN (SELECT n.oid FROM pg_namespace n WHERE n.nspname = ANY(spaces)))
        OR EXISTS (SELECT FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
            WHERE c.relkind = 'p');
END
