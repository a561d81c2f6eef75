"""What a rank holds and sends, counted to the byte: the memory ledger, saved activations, traffic."""
