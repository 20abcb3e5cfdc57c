"""Measuring a server from outside: it is driven over HTTP like any other client would."""
