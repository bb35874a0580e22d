"""From files to rows: strict reading, completeness, nodes' truth, the cache, the seal."""
