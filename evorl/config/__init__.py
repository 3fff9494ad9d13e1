"""Config parsing: suggestions for unknown names, checks by annotation and range, and nested nodes."""
