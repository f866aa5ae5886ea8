"""What touches the operating system: files that appear whole, and the box in which a stranger's work runs."""
