"""Starting an agent: packing it, finding out what is here, watching over its process."""
