"""Which task of a cluster a process is, and clusters started on one machine."""
