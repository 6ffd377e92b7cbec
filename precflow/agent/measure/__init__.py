"""What is known of one tensor: content id, statistics, sketch, many with one copy to the host."""
