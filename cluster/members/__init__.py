"""Who is a member: identities, admissions, connections between nodes, copies for those behind."""
