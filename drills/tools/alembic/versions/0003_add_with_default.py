import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade():
    op.add_column("customer", sa.Column("active", sa.Boolean, server_default=sa.true(), nullable=False))
    op.add_column("customer", sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now()))
    op.add_column("customer", sa.Column("token", sa.Uuid, server_default=sa.text("gen_random_uuid()")))
    op.add_column("customer", sa.Column("doubled", sa.Integer, sa.Computed("id * 2")))
    op.execute("UPDATE customer SET active = false WHERE id = 3")
    op.execute("INSERT INTO customer(name) VALUES ('with defaults')")
