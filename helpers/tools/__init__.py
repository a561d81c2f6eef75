"""Tools for anyone who trains with DeepSpeed: ranks from a cell, bytes counted, formulas, rehearsals.  They
never import `helpers.course`."""
