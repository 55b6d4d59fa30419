"""What Dagster records about outputs: asset records, metadata and previews."""
