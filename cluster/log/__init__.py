"""What is on the disk: files, the segments of the journal, the journal."""
