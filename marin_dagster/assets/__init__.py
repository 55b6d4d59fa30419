"""Steps as Dagster assets: definitions, translator, op, IO manager and checks."""
