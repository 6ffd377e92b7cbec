"""Reading dumps, checking that they are whole, and writing the requests that make them."""
