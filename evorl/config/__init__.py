"""From a config to values and nodes: names with their nearest, values by annotation and range, nested nodes."""
