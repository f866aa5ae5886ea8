"""Which known mistake gives these very values: the faults tried on, what they explain, the answer in words."""
