SELECT to_jsonb(p) || jsonb_build_object('oid', p.oid::int8,
    'tables', coalesce((SELECT jsonb_agg(jsonb_build_object('oid', r.prrelid::int8,
            'columns', CASE WHEN r.prattrs IS NOT NULL
                THEN to_jsonb(string_to_array(r.prattrs::text, ' ')::int2[]) END,
            -- pg_get_expr would lock the table, and wait for who has it.
            'filter', encode(sha256(convert_to(regexp_replace(r.prqual::text,
                ':(location|list_start|list_end) -?[0-9]+', '', 'g'), 'UTF8')), 'hex'))
            ORDER BY r.prrelid)
        FROM pg_publication_rel r WHERE r.prpubid = p.oid), '[]'),
    'schemas', coalesce((SELECT jsonb_agg(s.pnnspid::int8 ORDER BY s.pnnspid)
        FROM pg_publication_namespace s WHERE s.pnpubid = p.oid), '[]'))
FROM pg_publication p WHERE p.oid = ANY($1)
