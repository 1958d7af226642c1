"""What SQLAlchemy loads when it connects for the first time: imported here, and so on nobody's clock."""

from contextlib import suppress

import sqlalchemy.dialects.sqlite
import sqlalchemy.orm

with suppress(ImportError):  # it is asked for where PostgreSQL is
    import psycopg  # noqa: F401
    import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401
