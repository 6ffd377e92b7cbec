"""What gradients have to be that a dump shows without the operators that computed them, by what was recorded around them."""
