"""The spine: a request -> plan, price, run, answer; read gateway.py first."""
