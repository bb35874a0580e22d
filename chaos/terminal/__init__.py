"""What a person sees and types: consoles, options, progress."""
