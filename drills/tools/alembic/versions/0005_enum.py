import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ENUM

revision, down_revision = "0005", "0004"


def upgrade():
    kind = ENUM("private", "company", name="customer_kind", create_type=False)
    kind.create(op.get_bind())
    op.add_column("customer", sa.Column("kind", kind, server_default="private", nullable=False))
    op.execute("UPDATE customer SET kind = 'company' WHERE id = 5")
    with op.get_context().autocommit_block():
        op.execute("ALTER TYPE customer_kind ADD VALUE 'state' BEFORE 'company'")
    op.execute("INSERT INTO customer(name, kind) VALUES ('ministry', 'state')")
