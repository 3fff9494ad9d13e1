"""Pure maths: arrays in, arrays out; every formula of the package stands here once."""
