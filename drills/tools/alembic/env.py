import os

from alembic import context
from sqlalchemy import create_engine, pool

url = "postgresql+psycopg://postgres@127.0.0.1:{PGPORT}/{PGDATABASE}".format(**os.environ)
with create_engine(url, poolclass=pool.NullPool).connect() as connection:
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
