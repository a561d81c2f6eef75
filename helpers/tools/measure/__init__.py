"""What a rank holds and sends, counted to the byte (the memory ledger, saved activations, traffic); when it
does so, by the clock; and what limits the machine it runs on."""
