import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def upgrade():
    op.alter_column("customer", "name", type_=sa.Text, existing_nullable=False)
    op.alter_column("customer", "balance", type_=sa.Numeric(12, 4), postgresql_using="balance + 0.5", existing_nullable=False)
    op.execute("INSERT INTO customer(name, balance) VALUES ('a name that has more than forty letters in it', 12345678.1234)")
