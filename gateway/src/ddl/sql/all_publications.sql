
BEGIN
    RETURN jsonb_build_object('publications', coalesce((
        SELECT jsonb_agg(p.publication)
        FROM rindle._publications(ARRAY(SELECT p.oid FROM pg_publication p ORDER BY p.oid)) AS p(publication)), '[]'));
END
