"""The spine: the stages that answer a request, from reading to the answer; begin at gateway.py."""
