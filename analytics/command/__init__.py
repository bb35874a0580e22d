"""What `flotilla-check` does beside Spark's verdict: choosing, comparing, preparing."""
