"""The course as data, and what of it is written into README and docs."""
