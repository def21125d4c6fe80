"""The spine: a request -> read, plan, price, run, answer; read gateway.py first."""
