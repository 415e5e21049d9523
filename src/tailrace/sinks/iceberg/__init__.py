"""The sink `iceberg`: PostgreSQL's tables as Iceberg tables. `tailrace.lake` holds what readers share with it."""
