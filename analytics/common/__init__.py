"""What all of the checks share: the schema, the session, kept tables, check specs, verdicts."""
