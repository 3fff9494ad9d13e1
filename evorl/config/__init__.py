"""Config parsing: suggestions for unknown names, values checked by annotation and range, nested nodes."""
