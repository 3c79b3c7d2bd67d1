"""The split graph is written: copies on the devices, joins between them, what travels."""
